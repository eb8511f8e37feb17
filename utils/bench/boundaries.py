"""Writes the trace of utils/bench/boundaries.sh to standard output: conversations, some far more
popular than others, over a few system prompts. Each request is the whole conversation and a new
turn; now and then one goes back to an earlier turn and takes another way from there.

    utils/bench/boundaries.py REQUESTS"""

import itertools
import json
import random
import sys

BLOCK = 512  # tokens of a hash id
SYSTEMS, SYSTEM_BLOCKS = 20, 4
CONVERSATIONS, LONGEST = 300, 32


def main() -> None:
    draw, ids = random.Random(7), itertools.count(SYSTEMS * SYSTEM_BLOCKS)
    weights = [1 / (i + 1) ** 0.9 for i in range(CONVERSATIONS)]
    turns = [[] for _ in weights]  # of each: the conversation after each of its turns
    chosen = draw.choices(range(CONVERSATIONS), weights, k=int(sys.argv[1]))
    for number, conversation in enumerate(chosen):
        past = turns[conversation]
        if past and draw.random() < 0.15:
            del past[draw.randrange(len(past)) + 1 :]
        more = [next(ids) for _ in range(draw.randint(1, 4))]
        if not past or len(past[-1]) + len(more) > LONGEST:
            first = SYSTEM_BLOCKS * int(SYSTEMS * draw.random() ** 2)
            past[:] = [list(range(first, first + SYSTEM_BLOCKS))]
        past.append(past[-1] + more)
        tokens = BLOCK * len(past[-1])
        request = {"timestamp": 500 * number, "input_length": tokens, "output_length": 0}
        print(json.dumps({**request, "hash_ids": past[-1]}))


main()
