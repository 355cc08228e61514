//! What the manual says about the store is what happens.

use super::Fleet;
use crate::docs;

const MANUAL: &str = "docs/postgres.md";

#[test]
fn its_commands_do_what_it_shows() {
    docs::check_with(MANUAL, &Fleet::of(1, "limits: []").servers[0]);
}

#[test]
fn its_statements_can_be_run() {
    let fleet = Fleet::of(1, "activity: {}");
    fleet.wire(0).post("/v1/activity/ada", "").is(201);
    let text = docs::read(MANUAL);
    let blocks: Vec<&str> =
        text.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty(), "it shows none");
    // One after the other, and as if they never were: roles are everybody's.
    let told = fleet.sql.rows(&format!("BEGIN; {} ROLLBACK", blocks.concat()));
    assert_eq!(told.len(), 2, "a task and a version: {told:?}");
    assert_eq!((&*told[0][1], &*told[1][0]), ("ada", "1"));
}
