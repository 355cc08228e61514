//! A flash sale: many more buyers than goods, all at once, over both doors.

use std::collections::HashMap;

use crate::resp::stage::words;
use crate::serve::stage::{Client, FAR_TOO_LONG, Stage, acquire, wide};
use tidegate_server::tokens::TokenTable;

const GOODS: usize = 10_000;
const EACH: u32 = 2;
const BUYERS: u64 = 20_000;
const TRIES: usize = 200_000;
const CONNECTIONS: usize = 256;
const THREADS: usize = 4;

/// How a connection asks.
#[derive(Debug, Clone, Copy)]
enum Manner {
    Http,
    Resp,
}

/// A connection that asks for this many at once, again and again.
struct Line {
    client: Client,
    manner: Manner,
    at_once: usize,
}

impl Line {
    /// Half of them speak RESP; of either half, a quarter asks for many things at once.
    fn new(stage: &Stage, number: usize) -> Line {
        let is_deep = number % 8 < 2;
        let (client, manner, deep) = match number % 2 {
            0 => (stage.http(), Manner::Http, 4),
            _ => (stage.resp(), Manner::Resp, 16),
        };
        Line { client, manner, at_once: if is_deep { deep } else { 1 } }
    }

    fn asks(&mut self, buyers: &[String]) {
        let mut all = Vec::new();
        for buyer in buyers {
            all.extend(match self.manner {
                Manner::Http => acquire("sale", buyer),
                Manner::Resp => words(&format!("TG.ACQUIRE sale {buyer}")),
            });
        }
        self.client.say(&all);
    }

    /// Whether the next one got something.
    fn gets(&mut self) -> bool {
        match self.manner {
            Manner::Http => {
                let answer = self.client.answer().expect("an answer");
                assert_eq!(answer.status, 200);
                answer.json()["allowed"].as_bool().expect("yes or no")
            }
            Manner::Resp => match self.client.reply().expect("a reply") {
                reply if reply.starts_with("[1, ") => true,
                reply if reply.starts_with("[0, ") => false,
                other => panic!("{other}"),
            },
        }
    }
}

/// Caller tries next: always somebody, in no order.
struct Buyers(u64);

impl Iterator for Buyers {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Some(format!("u{}", (mixed ^ (mixed >> 29)) % BUYERS))
    }
}

/// Lets some connections try so often together; who got how many.
fn tries(mut lines: Vec<Line>, seed: u64, count: usize) -> HashMap<String, u32> {
    let (mut bought, mut left) = (HashMap::new(), count);
    let mut buyers = Buyers(seed);
    while left > 0 {
        // All ask before anybody listens, so that all of them are in the shop.
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
fn a_flash_sale_sells_exactly_what_there_is() {
    let limits = format!(
        "limits: [{{id: sale, items: [{{policy: total, limit: {GOODS}}}, {{policy: day, limit: {EACH}, per: key}}]}}]"
    );
    let stage = Stage::with(&limits, wide(), TokenTable::allow_all());
    let mut crews: Vec<Vec<Line>> = (0..THREADS).map(|_| Vec::new()).collect();
    for number in 0..CONNECTIONS {
        let line = Line::new(&stage, number);
        line.client.stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        // Neighbours differ in their manners; every crew has some of each.
        crews[(number / 8) % THREADS].push(line);
    }
    let threads: Vec<_> = crews
        .into_iter()
        .zip(1_u64..)
        .map(|(lines, seed)| std::thread::spawn(move || tries(lines, seed << 40, TRIES / THREADS)))
        .collect();
    let mut bought: HashMap<String, u32> = HashMap::new();
    for thread in threads {
        for (name, count) in thread.join().expect("nobody was answered wrongly") {
            *bought.entry(name).or_insert(0) += count;
        }
    }
    assert_eq!(bought.values().sum::<u32>() as usize, GOODS);
    assert!(bought.values().all(|count| *count <= EACH));
    stage.end();
}
