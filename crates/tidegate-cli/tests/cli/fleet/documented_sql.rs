//! The SQL that the documents show.

use super::Fleet;
use crate::docs::sql_blocks;

#[test]
fn sql_of_the_documents_can_be_run() {
    let fleet = Fleet::of(1, "activity: {}");
    fleet.connect(0).post("/v1/activity/ada", "").is(201);
    let blocks = sql_blocks();
    assert!(!blocks.is_empty(), "the documents show no SQL");
    // Rolled back: roles belong to the whole cluster, which other tests share.
    let rows = fleet.sql.rows(&format!("BEGIN; {} ROLLBACK", blocks.concat()));
    assert_eq!(rows.len(), 2, "a task and a version: {rows:?}");
    assert_eq!((&*rows[0][1], &*rows[1][0]), ("ada", "1"));
}
