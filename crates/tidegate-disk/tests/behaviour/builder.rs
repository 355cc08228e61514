//! A limiter built on a directory.

use tidegate::{Limiter, total};
use tidegate_disk::DiskExt;

#[test]
fn limiter_on_a_directory_survives_a_reopen() {
    let folder = std::env::temp_dir().join(format!("tidegate-disk-{}-builder", std::process::id()));
    let build = |most: u64| {
        Limiter::builder().disk(&folder).limit("trial", total(most).per_key()).build().expect("no mistakes")
    };
    let limiter = build(2);
    let trial = limiter.limit("trial").expect("it was put");
    assert!(trial.try_acquire("ada").is_ok());
    let busy = Limiter::builder().disk(&folder).build().expect_err("one process at a time");
    assert_eq!(busy.mistakes()[0].field, "store");
    drop((trial, limiter));

    let limiter = build(2);
    let trial = limiter.limit("trial").expect("it is there");
    assert!(trial.try_acquire("ada").is_ok(), "one of two is left");
    assert!(trial.try_acquire("ada").is_err(), "the counts survived");
    drop((trial, limiter));

    let trial = build(3).limit("trial").expect("it is there");
    assert!(trial.try_acquire("ada").is_ok(), "an edit keeps the counts");
    assert!(trial.try_acquire("ada").is_err());
    drop(trial);
    std::fs::remove_dir_all(&folder).expect("it was made");
}

#[test]
fn build_with_mistakes_opens_no_directory() {
    let folder = std::env::temp_dir().join(format!("tidegate-disk-{}-unopened", std::process::id()));
    let error = Limiter::builder().disk(&folder).limit("l", total(-7)).build().expect_err("below -1");
    assert_eq!(error.mistakes().len(), 1);
    assert!(!folder.exists());
}
