//! The report of a crash test, as text and as JSON, and its verdict.

use std::time::Duration;

use serde::Serialize;

use super::super::number::{counted, grouped};
use super::super::report::{ReasonJson, json};
use super::super::tally::FailureReasons;
use super::CrashRun;
use super::sales_ledger::LimitAccount;
use crate::Failure;
use crate::remote::table;

/// Number of reasons in the text.
const SHOWN_REASONS: usize = 5;

/// All results of a crash test.
#[derive(Debug)]
pub(super) struct CrashReport {
    store: String,
    seed: u64,
    kills: u32,
    laws: Vec<LimitOutcome>,
    /// In ascending order.
    recoveries: Vec<Duration>,
    leases: LeaseOutcome,
    retries: RetryOutcome,
    forgotten_limits: u64,
    failures: u64,
    reasons: FailureReasons,
}

/// Results of one limit.
#[derive(Debug, Clone, Serialize)]
struct LimitOutcome {
    law: String,
    limit: u64,
    sold: u64,
    over_admissions: u64,
    lost: u64,
    promised: u64,
    unanswered: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct LeaseOutcome {
    outlived: u64,
    lost: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct RetryOutcome {
    repeated: u64,
    charged_twice: u64,
}

impl LimitOutcome {
    fn of(account: &LimitAccount, kills: u32) -> LimitOutcome {
        LimitOutcome {
            law: account.limit.to_string(),
            limit: account.limit.capacity(),
            sold: account.most_sold(),
            over_admissions: account.over_admissions(),
            lost: account.lost(),
            promised: account.allowed_loss(kills),
            unanswered: account.unanswered,
        }
    }

    fn row(&self) -> [String; 7] {
        [
            self.law.clone(),
            grouped(self.limit),
            grouped(self.sold),
            grouped(self.over_admissions),
            grouped(self.lost),
            grouped(self.promised),
            grouped(self.unanswered),
        ]
    }
}

impl CrashReport {
    /// Computes the results.
    pub(super) fn of(run: &CrashRun, seed: u64) -> CrashReport {
        let ledger = run.ledger.borrow();
        let mut recoveries = run.recoveries.clone();
        recoveries.sort();
        CrashReport {
            store: run.store.clone(),
            seed,
            kills: run.kills,
            laws: ledger.accounts.iter().map(|account| LimitOutcome::of(account, run.kills)).collect(),
            recoveries,
            leases: LeaseOutcome { outlived: ledger.leases_outlived, lost: ledger.leases_lost },
            retries: RetryOutcome { repeated: ledger.replayed, charged_twice: ledger.charged_twice },
            forgotten_limits: ledger.accounts.iter().map(|account| account.made.saturating_sub(1)).sum(),
            failures: ledger.failures,
            reasons: ledger.reasons.clone(),
        }
    }

    /// All errors as text lines.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for LimitOutcome { law, over_admissions, lost, promised, .. } in &self.laws {
            if *over_admissions > 0 {
                let above = grouped(*over_admissions);
                wrong.push(format!("{law}: {above} SOLD ABOVE THE LIMIT."));
            }
            if lost > promised {
                let (lost, promised) = (grouped(*lost), grouped(*promised));
                wrong.push(format!("{law}: {lost} lost, at most {promised} allowed."));
            }
        }
        if self.leases.lost > 0 {
            let lost = counted(self.leases.lost, "lease was", "leases were");
            wrong.push(format!("{lost} forgotten by the server."));
        }
        if self.retries.charged_twice > 0 {
            let twice = counted(self.retries.charged_twice, "repeated request was", "repeated requests were");
            wrong.push(format!("{twice} charged again."));
        }
        if self.forgotten_limits > 0 {
            let limits = counted(self.forgotten_limits, "limit was", "limits were");
            wrong.push(format!("{limits} gone after a crash."));
        }
        if self.failures > 0 {
            wrong.push(format!("{} that no kill explains:", counted(self.failures, "failure", "failures")));
            let reasons = self.reasons.sorted().into_iter().take(SHOWN_REASONS);
            wrong.extend(reasons.map(|(why, count)| format!("  {} x {why}", grouped(count))));
        }
        wrong
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let heads = ["LIMIT", " CAPACITY", " SOLD", " ABOVE", " LOST", " ALLOWED LOSS", " UNANSWERED"];
        let rows: Vec<_> = self.laws.iter().map(LimitOutcome::row).collect();
        let kills = counted(u64::from(self.kills), "kill", "kills");
        let [min, median, max] = self.recovery().map(grouped);
        let LeaseOutcome { outlived, lost } = self.leases;
        let survived = grouped(outlived.saturating_sub(lost));
        let leases = counted(outlived, "lease", "leases");
        let repeated = counted(self.retries.repeated, "request was", "requests were");
        let twice = grouped(self.retries.charged_twice);
        let mut wrong = self.wrong();
        if wrong.is_empty() {
            wrong.push("No limit was exceeded, and no loss was above its bound.".to_owned());
        }
        format!(
            "{}\n{kills}; recovery took {min} ms (minimum), {median} ms (median), {max} ms (maximum).\n\
             {survived} of {leases} survived; {repeated} repeated with their ids, {twice} charged again.\n{}\n",
            table::lines(heads, &rows),
            wrong.join("\n"),
        )
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> String {
        let [min, median, max] = self.recovery();
        json(&CrashReportJson {
            store: &self.store,
            seed: self.seed,
            kills: self.kills,
            laws: &self.laws,
            recovery_ms: RecoveryJson { min, median, max },
            leases: self.leases,
            retries: self.retries,
            verdict: CrashVerdictJson {
                clean: self.wrong().is_empty(),
                over_admissions: self.laws.iter().map(|line| line.over_admissions).sum(),
                forgotten_limits: self.forgotten_limits,
                failures: self.failures,
                reasons: ReasonJson::all(&self.reasons),
            },
        })
    }

    /// An error unless the verdict is clean.
    pub(super) fn result(&self) -> Result<(), Failure> {
        match self.wrong().len() {
            0 => Ok(()),
            _ => Err(Failure::Failed(format!(
                "the verdict is not clean; --seed {} repeats the same kill times",
                self.seed
            ))),
        }
    }

    /// Shortest, median and longest recovery in milliseconds, rounded up.
    fn recovery(&self) -> [u64; 3] {
        let all = &self.recoveries;
        [all.first(), all.get(all.len() / 2), all.last()].map(|time| {
            let nanoseconds = time.map_or(0, Duration::as_nanos);
            u64::try_from(nanoseconds.div_ceil(1_000_000)).unwrap_or(u64::MAX)
        })
    }
}

#[derive(Debug, Serialize)]
struct CrashReportJson<'a> {
    store: &'a str,
    seed: u64,
    kills: u32,
    laws: &'a [LimitOutcome],
    recovery_ms: RecoveryJson,
    leases: LeaseOutcome,
    retries: RetryOutcome,
    verdict: CrashVerdictJson<'a>,
}

#[derive(Debug, Serialize)]
struct RecoveryJson {
    min: u64,
    median: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct CrashVerdictJson<'a> {
    clean: bool,
    over_admissions: u64,
    forgotten_limits: u64,
    failures: u64,
    reasons: Vec<ReasonJson<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report without errors.
    fn well() -> CrashReport {
        let total = LimitOutcome {
            law: "total".to_owned(),
            limit: 100_000,
            sold: 99_300,
            over_admissions: 0,
            lost: 700,
            promised: 790,
            unanswered: 10,
        };
        CrashReport {
            store: "disk:x".to_owned(),
            seed: 7,
            kills: 2,
            laws: vec![total],
            recoveries: [1_000, 2_500, 9_001].map(Duration::from_micros).to_vec(),
            leases: LeaseOutcome { outlived: 40, lost: 0 },
            retries: RetryOutcome { repeated: 64, charged_twice: 0 },
            forgotten_limits: 0,
            failures: 0,
            reasons: FailureReasons::default(),
        }
    }

    #[test]
    fn clean_run_has_a_clean_verdict() {
        let expected = "\
LIMIT  CAPACITY    SOLD  ABOVE  LOST  ALLOWED LOSS  UNANSWERED
total   100,000  99,300      0   700           790          10

2 kills; recovery took 1 ms (minimum), 3 ms (median), 10 ms (maximum).
40 of 40 leases survived; 64 requests were repeated with their ids, 0 charged again.
No limit was exceeded, and no loss was above its bound.
";
        assert_eq!(well().text(), expected);
        assert!(well().result().is_ok());
    }

    #[test]
    fn every_kind_of_error_is_reported() {
        type Spoil = fn(&mut CrashReport);
        let spoil: [(&str, Spoil); 6] = [
            ("total: 1 SOLD ABOVE THE LIMIT.", |report| report.laws[0].over_admissions = 1),
            ("total: 791 lost, at most 790 allowed.", |report| report.laws[0].lost = 791),
            ("1 lease was forgotten by the server.", |report| report.leases.lost = 1),
            ("3 repeated requests were charged again.", |report| report.retries.charged_twice = 3),
            ("1 limit was gone after a crash.", |report| report.forgotten_limits = 1),
            ("  1 x NOLIMIT", |report| {
                report.failures = 1;
                report.reasons.add("NOLIMIT", 1);
            }),
        ];
        for (line, spoil) in spoil {
            let mut report = well();
            spoil(&mut report);
            assert!(report.text().lines().any(|each| each == line), "{line} in {}", report.text());
            assert!(!report.text().contains("No limit was exceeded"), "{line}");
            assert!(report.result().is_err() && report.json().contains("\"clean\":false"), "{line}");
        }
    }

    #[test]
    fn json_has_the_documented_fields() {
        assert_eq!(
            well().json(),
            "{\"store\":\"disk:x\",\"seed\":7,\"kills\":2,\"laws\":[{\"law\":\"total\",\"limit\":100000,\"sold\":99300,\
             \"over_admissions\":0,\"lost\":700,\"promised\":790,\"unanswered\":10}],\
             \"recovery_ms\":{\"min\":1,\"median\":3,\"max\":10},\"leases\":{\"outlived\":40,\"lost\":0},\
             \"retries\":{\"repeated\":64,\"charged_twice\":0},\"verdict\":{\"clean\":true,\"over_admissions\":0,\
             \"forgotten_limits\":0,\"failures\":0,\"reasons\":[]}}"
        );
    }
}
