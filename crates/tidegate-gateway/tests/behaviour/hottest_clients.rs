//! The sketch of the hottest clients: a client above its share is always found.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate_gateway::ClientKey;
use tidegate_gateway::hottest_clients::{
    CAPACITY, HottestClient, TopClients, format_client, merge_top_clients,
};

fn name(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn find<'h>(all: &'h [HottestClient], client: &[u8]) -> Option<&'h HottestClient> {
    all.iter().find(|each| each.client == client)
}

#[test]
fn few_clients_are_counted_exactly() {
    let mut hot = TopClients::new();
    assert!(hot.is_empty());
    for (client, refused, times) in [(1, false, 5), (2, true, 7), (1, true, 3)] {
        (0..times).for_each(|_| hot.record(&name(client), refused));
    }
    let all = merge_top_clients([&hot], 10);
    let of = |client, admitted, refused| HottestClient { client: name(client), admitted, refused, error: 0 };
    assert_eq!(all, [of(1, 5, 3), of(2, 0, 7)]);
    assert_eq!(merge_top_clients([&hot], 1), [of(1, 5, 3)]);
}

#[test]
fn client_above_its_share_is_always_tracked() {
    // The worst case: between its requests, only clients that appear once.
    let mut hot = TopClients::new();
    let (mut total, mut theirs) = (0, 0);
    for round in 0..200_u32 {
        hot.record(b"hot", round % 2 == 0);
        theirs += 1;
        for other in 0..250 {
            hot.record(&name(round * 1000 + other), false);
        }
        total += 251;
        assert_eq!(hot.len(), CAPACITY.min(usize::try_from(round * 250 + 251).unwrap_or(CAPACITY)));
    }
    assert!(theirs * CAPACITY > total, "they make more than their part");
    let all = merge_top_clients([&hot], CAPACITY);
    let found = find(&all, b"hot").expect("they are there");
    let seen = found.admitted + found.refused;
    assert!(seen <= 200 && 200 <= seen + found.error, "{found:?}");
}

#[test]
fn halved_counts_favor_recent_clients() {
    let mut hot = TopClients::new();
    (0..1000).for_each(|_| hot.record(b"before", false));
    hot.record(b"once", false);
    for _ in 0..5 {
        hot.halve();
        (0..100).for_each(|_| hot.record(b"now", true));
    }
    let all = merge_top_clients([&hot], 10);
    assert_eq!(all.iter().map(|each| &each.client[..]).collect::<Vec<_>>(), [&b"now"[..], b"before"]);
    assert_eq!((all[0].refused, all[1].admitted), (193, 31));
    (0..20).for_each(|_| hot.halve());
    assert!(hot.is_empty());
}

#[test]
fn steady_hot_client_stays_first_while_counts_are_halved() {
    let mut hot = TopClients::new();
    for round in 0..50_u32 {
        for turn in 0..100 {
            hot.record(b"hot", false);
            (0..100).for_each(|other| hot.record(&name(round * 10_000 + turn * 100 + other), false));
        }
        hot.halve();
        let all = merge_top_clients([&hot], 1);
        // It made one of 101 requests, so half of its count is certain.
        assert_eq!(all[0].client, b"hot", "round {round}");
        assert!(all[0].admitted + all[0].error >= 50, "{all:?}");
    }
}

#[test]
fn sketches_of_workers_are_merged() {
    let (mut one, mut other) = (TopClients::new(), TopClients::new());
    (0..10).for_each(|_| one.record(b"both", false));
    (0..20).for_each(|_| other.record(b"both", true));
    (0..15).for_each(|_| other.record(b"one", false));
    // More clients than slots: untracked ones may have been counted by this worker.
    (0..1000).for_each(|client| one.record(&name(client), false));
    let all = merge_top_clients([&one, &other], 2);
    let both = &all[0];
    assert_eq!((&both.client[..], both.admitted, both.refused, both.error), (&b"both"[..], 10, 20, 0));
    assert_eq!((&all[1].client[..], all[1].admitted), (&b"one"[..], 15));
    assert!((1..=5).contains(&all[1].error), "{:?}", all[1]);
}

#[test]
fn client_keys_are_formatted_for_display() {
    let of = |address: &str| ClientKey::of_address(address.parse().expect("an address"));
    assert_eq!(format_client(of("203.0.113.9").as_bytes()), "203.0.113.9");
    assert_eq!(format_client(of("2001:db8:1:2:3::4").as_bytes()), "2001:db8:1:2::/64");
    let named = ClientKey::of_name(b"ada \xc3\xbc\x1b[2J\xff").expect("a name");
    assert_eq!(format_client(named.as_bytes()), "name:ada ü\\x1b[2J\u{fffd}");
    assert_eq!(format_client(b"4abc"), "bytes:4abc");
    assert_eq!(format_client(b""), "bytes:");
}

proptest! {
    /// For any stream, counts are lower bounds, errors cover the rest, and clients above their share are
    /// tracked.
    #[test]
    fn counts_stay_within_error_bounds(
        stream in prop::collection::vec((prop_oneof![0_u32..20, 0_u32..2000], any::<bool>()), 0..4000),
        workers in 1_usize..4,
    ) {
        let mut hots: Vec<TopClients> = (0..workers).map(|_| TopClients::new()).collect();
        let mut truth: HashMap<u32, (u64, u64)> = HashMap::new();
        for (at, (client, refused)) in stream.iter().enumerate() {
            hots[at % workers].record(&name(*client), *refused);
            let counts = truth.entry(*client).or_default();
            counts.0 += u64::from(!refused);
            counts.1 += u64::from(*refused);
        }
        let all = merge_top_clients(&hots, usize::MAX);
        prop_assert!(all.is_sorted_by_key(|each| std::cmp::Reverse(each.admitted + each.refused)));
        for (client, (admitted, refused)) in truth {
            let made = admitted + refused;
            match find(&all, &name(client)) {
                None => prop_assert!(made * (CAPACITY as u64) <= stream.len() as u64, "{client} made {made}"),
                Some(found) => {
                    prop_assert!(found.admitted <= admitted && found.refused <= refused);
                    prop_assert!(made <= found.admitted + found.refused + found.error);
                }
            }
        }
    }
}
