//! A flash sale: many more buyers than goods, at once, over both protocols.

use std::collections::HashMap;

use crate::resp::fixture::words;
use crate::serve::fixture::{Client, FAR_TOO_LONG, ServerFixture, acquire, wide};
use tidegate_server::tokens::TokenTable;

const GOODS: usize = 10_000;
const EACH: u32 = 2;
const BUYERS: u64 = 20_000;
const TRIES: usize = 200_000;
const CONNECTIONS: usize = 256;
const THREADS: usize = 4;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy)]
enum ConnectionKind {
    Http,
    Resp,
}

/// A connection that sends batches of this size.
struct BuyerConnection {
    client: Client,
    kind: ConnectionKind,
    at_once: usize,
}

impl BuyerConnection {
    /// Half of the connections use RESP; a quarter of each half sends batches.
    fn new(fixture: &ServerFixture, number: usize) -> BuyerConnection {
        let is_deep = number % 8 < 2;
        let (client, kind, deep) = match number % 2 {
            0 => (fixture.http(), ConnectionKind::Http, 4),
            _ => (fixture.resp(), ConnectionKind::Resp, 16),
        };
        BuyerConnection { client, kind, at_once: if is_deep { deep } else { 1 } }
    }

    fn asks(&mut self, buyers: &[String]) {
        let mut all = Vec::new();
        for buyer in buyers {
            all.extend(match self.kind {
                ConnectionKind::Http => acquire("sale", buyer),
                ConnectionKind::Resp => words(&format!("TG.ACQUIRE sale {buyer}")),
            });
        }
        self.client.say(&all);
    }

    /// Whether the next buyer got one.
    fn gets(&mut self) -> bool {
        match self.kind {
            ConnectionKind::Http => {
                let answer = self.client.answer().expect("an answer");
                assert_eq!(answer.status, 200);
                answer.json()["allowed"].as_bool().expect("yes or no")
            }
            ConnectionKind::Resp => match self.client.reply().expect("a reply") {
                reply if reply.starts_with("[1, ") => true,
                reply if reply.starts_with("[0, ") => false,
                other => panic!("{other}"),
            },
        }
    }
}

/// A random sequence of buyers.
struct BuyerSequence(u64);

impl Iterator for BuyerSequence {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Some(format!("u{}", (mixed ^ (mixed >> 29)) % BUYERS))
    }
}

/// Runs some connections together; returns how many each buyer got.
fn tries(mut lines: Vec<BuyerConnection>, seed: u64, count: usize) -> HashMap<String, u32> {
    let (mut bought, mut left) = (HashMap::new(), count);
    let mut buyers = BuyerSequence(seed);
    while left > 0 {
        // All connections send before any of them reads.
        let mut asked = Vec::with_capacity(lines.len());
        for line in &mut lines {
            let at_once = line.at_once.min(left);
            left -= at_once;
            let names: Vec<String> = buyers.by_ref().take(at_once).collect();
            line.asks(&names);
            asked.push(names);
        }
        for (line, names) in lines.iter_mut().zip(asked) {
            for name in names {
                if line.gets() {
                    *bought.entry(name).or_insert(0) += 1;
                }
            }
        }
    }
    bought
}

#[test]
fn flash_sale_sells_exactly_the_stock() {
    let limits = format!(
        "limits: [{{id: sale, items: [{{policy: total, limit: {GOODS}}}, {{policy: day, limit: {EACH}, per: key}}]}}]"
    );
    let fixture = ServerFixture::with(&limits, wide(), TokenTable::allow_all());
    let mut crews: Vec<Vec<BuyerConnection>> = (0..THREADS).map(|_| Vec::new()).collect();
    for number in 0..CONNECTIONS {
        let line = BuyerConnection::new(&fixture, number);
        line.client.stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        // Each thread gets a mix of protocols and batch sizes.
        crews[(number / 8) % THREADS].push(line);
    }
    let threads: Vec<_> = crews
        .into_iter()
        .zip(1_u64..)
        .map(|(lines, seed)| std::thread::spawn(move || tries(lines, seed << 40, TRIES / THREADS)))
        .collect();
    let mut bought: HashMap<String, u32> = HashMap::new();
    for thread in threads {
        for (name, count) in thread.join().expect("all replies are correct") {
            *bought.entry(name).or_insert(0) += count;
        }
    }
    assert_eq!(bought.values().sum::<u32>() as usize, GOODS);
    assert!(bought.values().all(|count| *count <= EACH));
    fixture.end();
}
