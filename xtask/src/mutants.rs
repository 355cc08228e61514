//! `cargo xtask mutants`: plants known mistakes, one at a time, and shows that a test notices each.
//!
//! A green suite says little until it has been seen red. Every entry of `mutants/*.txt` is a mistake that somebody could
//! make, and the tests that must not let it pass.
//!
//! ```text
//!   copy of the tree ──▶ tests green? ──▶ plant ──▶ compiles? ──▶ tests red? ──▶ restore ──▶ next
//!                             │no                      │no             │no
//!                             ▼                        ▼               ▼
//!                          invalid                  invalid         survived
//! ```
//!
//! Decided: the mistakes are written by hand. Generated ones are many and mostly mean nothing; these are the ones the
//! house is afraid of. The work is done in a copy below the build directory, never in the tree itself.

mod list;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{Ended, How, run_within};
use crate::suite::Tally;
use crate::workspace::Workspace;
use crate::{Outcome, tree};
use list::Mutant;

/// How long the tests of one mutant may take. A mistake that makes a loop endless is noticed by this.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a build may take; the first one builds every dependency.
const BUILD_PATIENCE: Duration = Duration::from_secs(1800);

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// A test failed, as it should.
    Killed,
    /// The tests did not end in time, which nobody would have missed either.
    Hung,
    /// The tests were green: nobody holds this.
    Survived,
    /// It says nothing, because of this.
    Invalid(String),
}

impl Fate {
    const fn is_good(&self) -> bool {
        matches!(self, Fate::Killed | Fate::Hung)
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Killed => write!(f, "killed"),
            Fate::Hung => write!(f, "killed (out of time)"),
            Fate::Survived => write!(f, "SURVIVED"),
            Fate::Invalid(why) => write!(f, "INVALID: {why}"),
        }
    }
}

/// Plants the mutants of the list, or the one that is named.
pub(crate) fn run(only: Option<&str>) -> Outcome {
    let workspace = Workspace::load()?;
    let mutants = chosen(list::load(&workspace.root)?, only)?;
    let mut field = Field::lay_out(&workspace)?;
    println!("{} mutants, in {}", mutants.len(), field.tree.display());
    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    let mut bad = 0;
    for mutant in &mutants {
        let began = Instant::now();
        let fate = field.try_out(mutant)?;
        bad += usize::from(!fate.is_good());
        println!("{:width$}  {:6.1} s  {fate}", mutant.name, began.elapsed().as_secs_f64());
    }
    println!("{} killed, {bad} not", mutants.len() - bad);
    if bad == 0 { Ok(()) } else { Err("some mistakes would not be noticed".into()) }
}

fn chosen(mutants: Vec<Mutant>, only: Option<&str>) -> Outcome<Vec<Mutant>> {
    let Some(name) = only else { return Ok(mutants) };
    let names: Vec<String> = mutants.iter().map(|mutant| mutant.name.clone()).collect();
    let chosen: Vec<Mutant> = mutants.into_iter().filter(|mutant| mutant.name == name).collect();
    if chosen.is_empty() {
        return Err(format!("no mutant is called {name}; there are: {}", names.join(", ")).into());
    }
    Ok(chosen)
}

/// A copy of the tree, to plant in.
#[derive(Debug)]
struct Field {
    tree: PathBuf,
    build: PathBuf,
    /// Whether these tests are green without any mutant; if not, why.
    sound: BTreeMap<Vec<String>, Result<(), String>>,
}

impl Field {
    fn lay_out(workspace: &Workspace) -> Outcome<Field> {
        let below = workspace.target.join("mutants");
        let field = Field { tree: below.join("tree"), build: below.join("build"), sound: BTreeMap::new() };
        if field.tree.exists() {
            fs::remove_dir_all(&field.tree)?;
        }
        for file in tree::files(&workspace.root)? {
            let copy = field.tree.join(&file);
            fs::create_dir_all(copy.parent().unwrap_or(Path::new("")))?;
            fs::copy(workspace.root.join(&file), copy)?;
        }
        Ok(field)
    }

    fn try_out(&mut self, mutant: &Mutant) -> Outcome<Fate> {
        if let Err(why) = self.soundness(&mutant.tests)? {
            return Ok(Fate::Invalid(why));
        }
        let path = self.tree.join(&mutant.file);
        let original = match fs::read_to_string(&path) {
            Ok(original) => original,
            Err(error) => return Ok(Fate::Invalid(format!("{}: {error}", mutant.file))),
        };
        let planted = match plant(&original, &mutant.old, &mutant.new) {
            Ok(planted) => planted,
            Err(why) => return Ok(Fate::Invalid(why)),
        };
        fs::write(&path, planted)?;
        let fate = self.watch(&mutant.tests);
        fs::write(&path, original)?;
        fate
    }

    /// Builds and runs the tests with a mutant planted.
    fn watch(&self, tests: &[String]) -> Outcome<Fate> {
        if !self.compile(tests)?.succeeded() {
            return Ok(Fate::Invalid("it does not compile".to_owned()));
        }
        Ok(fate(&self.test(tests)?))
    }

    /// Whether tests are green, and any of them run, in the tree as it is; found out once.
    fn soundness(&mut self, tests: &[String]) -> Outcome<Result<(), String>> {
        if let Some(known) = self.sound.get(tests) {
            return Ok(known.clone());
        }
        let sound = if self.compile(tests)?.succeeded() {
            soundness(&self.test(tests)?)
        } else {
            Err("the tree does not compile without it".to_owned())
        };
        self.sound.insert(tests.to_vec(), sound.clone());
        Ok(sound)
    }

    fn compile(&self, tests: &[String]) -> Outcome<Ended> {
        let mut command = self.cargo_test();
        command.arg("--no-run").args(tests);
        run_within(command, BUILD_PATIENCE)
    }

    fn test(&self, tests: &[String]) -> Outcome<Ended> {
        let mut command = self.cargo_test();
        command.args(tests);
        run_within(command, PATIENCE)
    }

    fn cargo_test(&self) -> Command {
        let mut command = Command::new("cargo");
        command.args(["test", "--locked"]).current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.build);
        // One mutant's counter-example must not be remembered as another's.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command
    }
}

/// The source with the mistake in it. Which place is meant must be beyond doubt.
fn plant(source: &str, old: &str, new: &str) -> Result<String, String> {
    match source.matches(old).count() {
        1 => Ok(source.replacen(old, new, 1)),
        0 => Err("the old text is not in the file".to_owned()),
        count => Err(format!("the old text is in the file {count} times")),
    }
}

fn fate(ended: &Ended) -> Fate {
    match ended.how {
        How::OutOfTime => Fate::Hung,
        How::Exited(status) if status.success() => Fate::Survived,
        How::Exited(_) if Tally::read(&ended.output).failed > 0 => Fate::Killed,
        How::Exited(_) if ended.output.contains("(signal: ") => Fate::Killed,
        How::Exited(_) => Fate::Invalid("cargo failed without a failing test".to_owned()),
    }
}

fn soundness(ended: &Ended) -> Result<(), String> {
    if !ended.succeeded() {
        Err("its tests are red without it".to_owned())
    } else if Tally::read(&ended.output).passed == 0 {
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

    fn ended(code: i32, output: &str) -> Ended {
        Ended { output: output.to_owned(), how: How::Exited(ExitStatus::from_raw(code << 8)) }
    }

    const GREEN: &str = "test result: ok. 3 passed; 0 failed; 0 ignored";
    const RED: &str = "test result: FAILED. 2 passed; 1 failed; 0 ignored";
    const EMPTY: &str = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";

    #[test]
    fn a_mutant_is_killed_only_by_a_failing_test() {
        assert_eq!(fate(&ended(101, RED)), Fate::Killed);
        assert_eq!(fate(&ended(0, GREEN)), Fate::Survived);
        assert!(matches!(fate(&ended(101, "error: no such package")), Fate::Invalid(_)));
        assert_eq!(fate(&Ended { output: String::new(), how: How::OutOfTime }), Fate::Hung);
    }

    #[test]
    fn tests_that_are_red_or_empty_anyway_prove_nothing() {
        assert_eq!(soundness(&ended(0, GREEN)), Ok(()));
        assert!(soundness(&ended(101, RED)).is_err());
        assert!(soundness(&ended(0, EMPTY)).is_err());
    }

    #[test]
    fn a_mutant_has_exactly_one_place() {
        assert_eq!(plant("a < b", "<", "<="), Ok("a <= b".to_owned()));
        assert!(plant("a < b < c", "<", "<=").unwrap_err().contains("2 times"));
        assert!(plant("a > b", "<", "<=").unwrap_err().contains("not in the file"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let mutants = list::parse("mutant a\nfile f\nold x\nnew y\ntests -p z\n").unwrap();
        assert!(chosen(mutants.clone(), Some("b")).unwrap_err().to_string().contains("there are: a"));
        assert_eq!(chosen(mutants, Some("a")).unwrap().len(), 1);
    }
}
