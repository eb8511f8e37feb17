//! Replays what `route_index PAIRS HOLDERS MATCHES BLOCKS FILE` wrote through SMG's
//! PositionalIndexer, and prints what route_index prints of tarn's index. smg-index.sh builds and
//! runs both.

mod event_tree;
use event_tree::{ContentHash, PositionalIndexer, SequenceHash, StoredBlock, WorkerBlockMap};
use std::io::{BufReader, Read};
use std::time::Instant;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}
extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

/// CPU time of this thread.
fn cpu_seconds() -> f64 {
    let mut t = Timespec { seconds: 0, nanos: 0 };
    unsafe { clock_gettime(3, &mut t) };
    t.seconds as f64 + t.nanos as f64 / 1e9
}

fn resident_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

fn numbers(file: &mut impl Read, n: usize) -> Vec<u64> {
    let mut bytes = vec![0u8; n * 8];
    file.read_exact(&mut bytes).expect("the file was cut off");
    bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect()
}

#[derive(Default)]
struct Applied {
    blocks: u64,
    events: u64,
    seconds: f64,
    refused: u64,
}

impl Applied {
    fn add(&mut self, blocks: usize, start: f64) {
        self.seconds += cpu_seconds() - start;
        self.blocks += blocks as u64;
        self.events += 1;
    }
    fn report(&self, index: &PositionalIndexer, before: f64, clock: f64) {
        let seconds = self.seconds - self.events as f64 * clock;
        println!(
            "{} blocks in {:.2} s of CPU: {:.1} M a second; {} pairs of {:.1} bytes; {} refused",
            self.blocks,
            seconds,
            self.blocks as f64 / seconds / 1e6,
            index.current_size(),
            (resident_bytes() - before) / index.current_size() as f64,
            self.refused
        );
    }
}

/// What asking the clock twice costs, which is not the index's.
fn clock_seconds() -> f64 {
    let start = cpu_seconds();
    let mut last = start;
    for _ in 0..20000 {
        last = cpu_seconds();
    }
    (last - start) / 20000.0
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let jump = args[2].parse().expect("the second argument is the size of a jump");
    let mut file = BufReader::new(std::fs::File::open(&args[1]).expect("the file of events"));
    let index = PositionalIndexer::new(jump);
    let mut workers: Vec<WorkerBlockMap> = Vec::new();
    let (clock, before) = (clock_seconds(), resident_bytes());
    let mut applied = Applied::default();
    let (mut nanos, mut found, mut best) = (Vec::new(), 0u64, 0u64);
    let mut head = [0u8; 24];
    while file.read_exact(&mut head).is_ok() {
        let word = |i: usize| u32::from_le_bytes(head[4 * i..4 * i + 4].try_into().unwrap());
        let (worker, n) = (word(1) as usize, word(2) as usize);
        let parent = u64::from_le_bytes(head[16..].try_into().unwrap());
        match word(0) {
            1 => {
                let own = numbers(&mut file, n);
                let local = numbers(&mut file, n);
                while workers.len() <= worker {
                    index.intern_worker(&format!("worker {}", workers.len())).unwrap();
                    workers.push(WorkerBlockMap::default());
                }
                let blocks: Vec<StoredBlock> = own
                    .iter()
                    .zip(&local)
                    .map(|(o, l)| StoredBlock {
                        seq_hash: SequenceHash(*o),
                        content_hash: ContentHash(*l),
                    })
                    .collect();
                let parent = (word(3) != 0).then_some(SequenceHash(parent));
                let start = cpu_seconds();
                let done =
                    index.apply_stored(worker as u32, &blocks, parent, &mut workers[worker]);
                applied.add(n, start);
                applied.refused += done.is_err() as u64;
            }
            2 => {
                let own: Vec<SequenceHash> =
                    numbers(&mut file, n).into_iter().map(SequenceHash).collect();
                let start = cpu_seconds();
                index.apply_removed(worker as u32, &own, &mut workers[worker]);
                applied.add(n, start);
            }
            3 => {
                applied.report(&index, before, clock);
                applied = Applied::default();
            }
            _ => {
                let prompt: Vec<ContentHash> =
                    numbers(&mut file, n).into_iter().map(ContentHash).collect();
                let start = Instant::now();
                let scores = index.find_matches(&prompt, false).scores;
                nanos.push(start.elapsed().as_nanos() as u64);
                found += scores.len() as u64;
                best += *scores.values().max().unwrap_or(&0) as u64;
            }
        }
    }
    nanos.sort_unstable();
    let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize];
    println!(
        "{} look-ups: median {} ns, p90 {}, p99 {}, p99.9 {}; {:.1} holders, {:.1} blocks best",
        nanos.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        found as f64 / nanos.len() as f64,
        best as f64 / nanos.len() as f64
    );
}
