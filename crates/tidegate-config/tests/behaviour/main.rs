//! Limits files: the values of good ones, and the messages for bad ones.
//!
//! Every message is a snapshot of a small file with that mistake. `snapshots/` holds them.

mod anything;
mod bad_structure;
mod bad_text;
mod bad_values;
mod good_files;
mod several;
mod text;

use tidegate_config::limits::read_text;

/// The example of the manual, all fields of it.
const EXAMPLE: &str = r"limits:
  - id: spring-sale                  # limit_id; 1..256 bytes of [A-Za-z0-9._:/-]
    description: flash sale           # optional
    time_zone: Asia/Shanghai          # IANA name; default UTC; used by calendar items
    week_start: monday                # default monday
    starts_at: 2026-01-20T00:00:00+08:00   # optional
    ends_at: 2026-02-20T00:00:00+08:00
    mode: enforce                     # enforce (default) | shadow | off
    on_outage: deny                   # deny (default) | admit, when the store cannot answer
    durability: ceiling               # ceiling (default) | sync | volatile
    fleet: exact                      # exact (default) | sliced
    max_keys: 1000000                 # optional bound; a full limit refuses only its own new keys
    items:
      - {policy: total,       limit: 10000}                              # per: all is the default
      - {policy: total,       limit: 2,   per: key}
      - {policy: day,         limit: 1,   per: key}                      # second .. year
      - {policy: interval,    limit: 5,   per: key, window: 10s}         # anchored at the first hit
      - {policy: sliding,     limit: 5,   per: key, window: 15s}         # exact, closed window
      - {policy: sliding,     limit: 2000000, window: 60s, precision: bucketed}
      - {policy: bucket,      limit: 100, window: 1s, burst: 200}        # GCRA
      - {policy: concurrency, limit: 30,  ttl: 60s}                      # leases
    overrides:
      - {key: vip-7, item: key/day, limit: 20, until: 2026-02-01T00:00:00Z}   # until is optional
";

/// What a bad file is told.
#[track_caller]
fn bad(bytes: impl AsRef<[u8]>) -> String {
    read_text("tidegate.yaml", bytes.as_ref()).expect_err("the file must be refused").to_string()
}
