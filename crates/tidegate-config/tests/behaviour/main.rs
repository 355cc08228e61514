//! Tests of settings files: the values of valid files, and the messages for invalid files.
//!
//! `snapshots/` contains the messages, one snapshot for each test.

mod fuzz;
mod invalid_structure;
mod invalid_text;
mod invalid_values;
mod multiple_errors;
mod text_parsers;
mod valid_files;

use tidegate_config::limits::read_text;

/// The example of the manual. It contains all fields.
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

/// The messages for an invalid file.
#[track_caller]
fn errors_of(bytes: impl AsRef<[u8]>) -> String {
    read_text("tidegate.yaml", bytes.as_ref()).expect_err("the file must be rejected").to_string()
}
