//! `cargo xtask mutants`: plants known bugs, one at a time, and checks that a test fails for each.
//!
//! A green suite proves little until it has been seen red. Every entry of `xtask/mutants/*.txt` is a plausible bug and the
//! tests that must fail for it.
//!
//! ```text
//!   copy of the tree ──▶ tests green? ──▶ plant ──▶ compiles? ──▶ tests red? ──▶ restore ──▶ next
//!                             │no                      │no             │no
//!                             ▼                        ▼               ▼
//!                          invalid                  invalid         survived
//! ```
//!
//! The bugs are written by hand. Generated mutants are many and mostly meaningless. The work happens in a copy of the tree
//! under the build directory, never in the tree itself.

mod list;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{CommandOutcome, ExitCause, run_within};
use crate::test_suite::TestCounts;
use crate::workspace::Workspace;
use crate::{TaskResult, source_files};
use list::Mutant;

/// Time limit for the tests of one mutant. It ends mutants that loop forever.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Time limit for a build. The first one builds every dependency.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1800);

/// The outcome of one mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MutantOutcome {
    /// A test failed, as expected.
    Killed,
    /// The tests ran into the time limit, which counts as a failure.
    TimedOut,
    /// The tests passed: nothing detects this bug.
    Survived,
    /// The mutant proves nothing, with the reason.
    Invalid(String),
}

impl MutantOutcome {
    const fn is_good(&self) -> bool {
        matches!(self, MutantOutcome::Killed | MutantOutcome::TimedOut)
    }
}

impl fmt::Display for MutantOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MutantOutcome::Killed => write!(f, "killed"),
            MutantOutcome::TimedOut => write!(f, "killed (timed out)"),
            MutantOutcome::Survived => write!(f, "SURVIVED"),
            MutantOutcome::Invalid(why) => write!(f, "INVALID: {why}"),
        }
    }
}

/// Plants every mutant, or only the named one.
pub(crate) fn run(only: Option<&str>) -> TaskResult {
    let workspace = Workspace::load()?;
    let mutants = chosen(list::load(&workspace.root)?, only)?;
    let mut tree = MutantTree::copy_tree(&workspace)?;
    println!("{} mutants, in {}", mutants.len(), tree.root.display());
    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    let mut bad = 0;
    for mutant in &mutants {
        let began = Instant::now();
        let outcome = tree.run_mutant(mutant)?;
        bad += usize::from(!outcome.is_good());
        println!("{:width$}  {:6.1} s  {outcome}", mutant.name, began.elapsed().as_secs_f64());
    }
    println!("{} killed, {bad} not killed", mutants.len() - bad);
    if bad == 0 { Ok(()) } else { Err("some bugs would not be detected".into()) }
}

fn chosen(mutants: Vec<Mutant>, only: Option<&str>) -> TaskResult<Vec<Mutant>> {
    let Some(name) = only else { return Ok(mutants) };
    let names: Vec<String> = mutants.iter().map(|mutant| mutant.name.clone()).collect();
    let chosen: Vec<Mutant> = mutants.into_iter().filter(|mutant| mutant.name == name).collect();
    if chosen.is_empty() {
        return Err(format!("no mutant is named {name}; known: {}", names.join(", ")).into());
    }
    Ok(chosen)
}

/// A copy of the tree to plant mutants in.
#[derive(Debug)]
struct MutantTree {
    root: PathBuf,
    build: PathBuf,
    /// Whether these tests pass without a mutant, or why not.
    baselines: BTreeMap<Vec<String>, Result<(), String>>,
}

impl MutantTree {
    fn copy_tree(workspace: &Workspace) -> TaskResult<MutantTree> {
        let below = workspace.target.join("mutants");
        let copy =
            MutantTree { root: below.join("tree"), build: below.join("build"), baselines: BTreeMap::new() };
        if copy.root.exists() {
            fs::remove_dir_all(&copy.root)?;
        }
        for file in source_files::files(&workspace.root)? {
            let target = copy.root.join(&file);
            fs::create_dir_all(target.parent().unwrap_or(Path::new("")))?;
            fs::copy(workspace.root.join(&file), target)?;
        }
        Ok(copy)
    }

    fn run_mutant(&mut self, mutant: &Mutant) -> TaskResult<MutantOutcome> {
        if let Err(why) = self.check_baseline(&mutant.tests)? {
            return Ok(MutantOutcome::Invalid(why));
        }
        let path = self.root.join(&mutant.file);
        let original = match fs::read_to_string(&path) {
            Ok(original) => original,
            Err(error) => return Ok(MutantOutcome::Invalid(format!("{}: {error}", mutant.file))),
        };
        let planted = match plant(&original, &mutant.old, &mutant.new) {
            Ok(planted) => planted,
            Err(why) => return Ok(MutantOutcome::Invalid(why)),
        };
        fs::write(&path, planted)?;
        let outcome = self.run_tests(&mutant.tests);
        fs::write(&path, original)?;
        outcome
    }

    /// Builds and runs the tests with the mutant planted.
    fn run_tests(&self, tests: &[String]) -> TaskResult<MutantOutcome> {
        if !self.compile(tests)?.succeeded() {
            return Ok(MutantOutcome::Invalid("it does not compile".to_owned()));
        }
        Ok(outcome(&self.test(tests)?))
    }

    /// Whether the tests pass in the unchanged tree and at least one runs. Cached.
    fn check_baseline(&mut self, tests: &[String]) -> TaskResult<Result<(), String>> {
        if let Some(known) = self.baselines.get(tests) {
            return Ok(known.clone());
        }
        let baseline = if self.compile(tests)?.succeeded() {
            baseline(&self.test(tests)?)
        } else {
            Err("the tree does not compile without it".to_owned())
        };
        self.baselines.insert(tests.to_vec(), baseline.clone());
        Ok(baseline)
    }

    fn compile(&self, tests: &[String]) -> TaskResult<CommandOutcome> {
        let mut command = self.cargo_test();
        command.arg("--no-run").args(tests);
        run_within(command, BUILD_TIMEOUT)
    }

    fn test(&self, tests: &[String]) -> TaskResult<CommandOutcome> {
        let mut command = self.cargo_test();
        command.args(tests);
        run_within(command, TEST_TIMEOUT)
    }

    fn cargo_test(&self) -> Command {
        let mut command = Command::new("cargo");
        command.args(["test", "--locked"]).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.build);
        // The counterexample of one mutant must not be replayed for another.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command
    }
}

/// The source with the bug in it. The old text must occur exactly once.
fn plant(source: &str, old: &str, new: &str) -> Result<String, String> {
    match source.matches(old).count() {
        1 => Ok(source.replacen(old, new, 1)),
        0 => Err("the old text is not in the file".to_owned()),
        count => Err(format!("the old text is in the file {count} times")),
    }
}

fn outcome(ended: &CommandOutcome) -> MutantOutcome {
    match ended.exit {
        ExitCause::TimedOut => MutantOutcome::TimedOut,
        ExitCause::Exited(status) if status.success() => MutantOutcome::Survived,
        ExitCause::Exited(_) if TestCounts::read(&ended.output).failed > 0 => MutantOutcome::Killed,
        ExitCause::Exited(_) if ended.output.contains("(signal: ") => MutantOutcome::Killed,
        ExitCause::Exited(_) => MutantOutcome::Invalid("cargo failed without a failing test".to_owned()),
    }
}

fn baseline(ended: &CommandOutcome) -> Result<(), String> {
    if !ended.succeeded() {
        Err("its tests fail without it".to_owned())
    } else if TestCounts::read(&ended.output).passed == 0 {
        Err("its tests match nothing".to_owned())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(code: i32, output: &str) -> CommandOutcome {
        CommandOutcome { output: output.to_owned(), exit: ExitCause::Exited(ExitStatus::from_raw(code << 8)) }
    }

    const GREEN: &str = "test result: ok. 3 passed; 0 failed; 0 ignored";
    const RED: &str = "test result: FAILED. 2 passed; 1 failed; 0 ignored";
    const EMPTY: &str = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";

    #[test]
    fn mutant_is_killed_only_by_a_failing_test() {
        assert_eq!(outcome(&ended(101, RED)), MutantOutcome::Killed);
        assert_eq!(outcome(&ended(0, GREEN)), MutantOutcome::Survived);
        assert!(matches!(outcome(&ended(101, "error: no such package")), MutantOutcome::Invalid(_)));
        assert_eq!(
            outcome(&CommandOutcome { output: String::new(), exit: ExitCause::TimedOut }),
            MutantOutcome::TimedOut
        );
    }

    #[test]
    fn failing_or_empty_baseline_is_invalid() {
        assert_eq!(baseline(&ended(0, GREEN)), Ok(()));
        assert!(baseline(&ended(101, RED)).is_err());
        assert!(baseline(&ended(0, EMPTY)).is_err());
    }

    #[test]
    fn ambiguous_or_missing_old_text_is_an_error() {
        assert_eq!(plant("a < b", "<", "<="), Ok("a <= b".to_owned()));
        assert!(plant("a < b < c", "<", "<=").unwrap_err().contains("2 times"));
        assert!(plant("a > b", "<", "<=").unwrap_err().contains("not in the file"));
    }

    #[test]
    fn unknown_name_error_lists_known_names() {
        let mutants = list::parse("mutant a\nfile f\nold x\nnew y\ntests -p z\n").unwrap();
        assert!(chosen(mutants.clone(), Some("b")).unwrap_err().to_string().contains("known: a"));
        assert_eq!(chosen(mutants, Some("a")).unwrap().len(), 1);
    }
}
