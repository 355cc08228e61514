//! Who asks most: nobody who does is overlooked, however many others there are.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate_gateway::ClientKey;
use tidegate_gateway::hottest_clients::{Hot, Hottest, LINES, hottest, show_client};

fn name(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn find<'h>(all: &'h [Hottest], client: &[u8]) -> Option<&'h Hottest> {
    all.iter().find(|each| each.client == client)
}

#[test]
fn few_clients_are_counted_exactly() {
    let mut hot = Hot::new();
    assert!(hot.is_empty());
    for (client, refused, times) in [(1, false, 5), (2, true, 7), (1, true, 3)] {
        (0..times).for_each(|_| hot.seen(&name(client), refused));
    }
    let all = hottest([&hot], 10);
    let of = |client, admitted, refused| Hottest { client: name(client), admitted, refused, error: 0 };
    assert_eq!(all, [of(1, 5, 3), of(2, 0, 7)]);
    assert_eq!(hottest([&hot], 1), [of(1, 5, 3)]);
}

#[test]
fn who_makes_more_than_their_part_is_never_overlooked() {
    // The worst for them: everybody else comes once, in every gap.
    let mut hot = Hot::new();
    let (mut total, mut theirs) = (0, 0);
    for round in 0..200_u32 {
        hot.seen(b"hot", round % 2 == 0);
        theirs += 1;
        for other in 0..250 {
            hot.seen(&name(round * 1000 + other), false);
        }
        total += 251;
        assert_eq!(hot.len(), LINES.min(usize::try_from(round * 250 + 251).unwrap_or(LINES)));
    }
    assert!(theirs * LINES > total, "they make more than their part");
    let all = hottest([&hot], LINES);
    let found = find(&all, b"hot").expect("they are there");
    let seen = found.admitted + found.refused;
    assert!(seen <= 200 && 200 <= seen + found.error, "{found:?}");
}

#[test]
fn what_is_long_ago_fades() {
    let mut hot = Hot::new();
    (0..1000).for_each(|_| hot.seen(b"before", false));
    hot.seen(b"once", false);
    for _ in 0..5 {
        hot.fade();
        (0..100).for_each(|_| hot.seen(b"now", true));
    }
    let all = hottest([&hot], 10);
    assert_eq!(all.iter().map(|each| &each.client[..]).collect::<Vec<_>>(), [&b"now"[..], b"before"]);
    assert_eq!((all[0].refused, all[1].admitted), (193, 31));
    (0..20).for_each(|_| hot.fade());
    assert!(hot.is_empty());
}

#[test]
fn who_is_hot_stays_so_while_everything_fades() {
    let mut hot = Hot::new();
    for round in 0..50_u32 {
        for turn in 0..100 {
            hot.seen(b"hot", false);
            (0..100).for_each(|other| hot.seen(&name(round * 10_000 + turn * 100 + other), false));
        }
        hot.fade();
        let all = hottest([&hot], 1);
        // It made one of 101 requests, so that half of what it has done is certain.
        assert_eq!(all[0].client, b"hot", "round {round}");
        assert!(all[0].admitted + all[0].error >= 50, "{all:?}");
    }
}

#[test]
fn workers_are_added_up() {
    let (mut one, mut other) = (Hot::new(), Hot::new());
    (0..10).for_each(|_| one.seen(b"both", false));
    (0..20).for_each(|_| other.seen(b"both", true));
    (0..15).for_each(|_| other.seen(b"one", false));
    // More than there are lines for: whoever has none may have been seen by this worker.
    (0..1000).for_each(|client| one.seen(&name(client), false));
    let all = hottest([&one, &other], 2);
    let both = &all[0];
    assert_eq!((&both.client[..], both.admitted, both.refused, both.error), (&b"both"[..], 10, 20, 0));
    assert_eq!((&all[1].client[..], all[1].admitted), (&b"one"[..], 15));
    assert!((1..=5).contains(&all[1].error), "{:?}", all[1]);
}

#[test]
fn clients_are_shown_as_people_write_them() {
    let of = |address: &str| ClientKey::of_address(address.parse().expect("an address"));
    assert_eq!(show_client(of("203.0.113.9").as_bytes()), "203.0.113.9");
    assert_eq!(show_client(of("2001:db8:1:2:3::4").as_bytes()), "2001:db8:1:2::/64");
    let named = ClientKey::of_name(b"ada \xc3\xbc\x1b[2J\xff").expect("a name");
    assert_eq!(show_client(named.as_bytes()), "name:ada ü\\x1b[2J\u{fffd}");
    assert_eq!(show_client(b"4abc"), "bytes:4abc");
    assert_eq!(show_client(b""), "bytes:");
}

proptest! {
    /// Any stream: what is told is certain, what is not told is within the error, and nobody is missing who made their part.
    #[test]
    fn bounds_hold(
        stream in prop::collection::vec((prop_oneof![0_u32..20, 0_u32..2000], any::<bool>()), 0..4000),
        workers in 1_usize..4,
    ) {
        let mut hots: Vec<Hot> = (0..workers).map(|_| Hot::new()).collect();
        let mut truth: HashMap<u32, (u64, u64)> = HashMap::new();
        for (at, (client, refused)) in stream.iter().enumerate() {
            hots[at % workers].seen(&name(*client), *refused);
            let counts = truth.entry(*client).or_default();
            counts.0 += u64::from(!refused);
            counts.1 += u64::from(*refused);
        }
        let all = hottest(&hots, usize::MAX);
        prop_assert!(all.is_sorted_by_key(|each| std::cmp::Reverse(each.admitted + each.refused)));
        for (client, (admitted, refused)) in truth {
            let made = admitted + refused;
            match find(&all, &name(client)) {
                None => prop_assert!(made * (LINES as u64) <= stream.len() as u64, "{client} made {made}"),
                Some(found) => {
                    prop_assert!(found.admitted <= admitted && found.refused <= refused);
                    prop_assert!(made <= found.admitted + found.refused + found.error);
                }
            }
        }
    }
}
