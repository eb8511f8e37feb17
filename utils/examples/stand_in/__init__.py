"""What stand_in_engine.py is made of.

    words      text to tokens and back; the chat template
    hardware   how long a step takes
    model      KV bytes of a block, and the next token
    blocks     the prefix cache
    core       requests, the scheduler, steps
    pool       TarnConnector, driven as vLLM drives it
    events     KV events over ZeroMQ
    forms      what a request says
    api        HTTP
    metrics    /metrics
    register   the engine's entry at the Conductor"""
