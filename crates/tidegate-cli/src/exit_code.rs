//! Exit codes: why a command failed, and the code that says so. Success is 0.

use std::fmt;
use std::process::ExitCode;

/// The exit code for invalid input, files or arguments.
pub(crate) const INVALID_ARGUMENTS: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Failure that is not caused by the input: exit code 1.
    Failed(String),
    /// Invalid input, file or argument: exit code 2.
    BadInput(String),
    /// The server refused; its decision was printed: exit code 3.
    Refused,
    /// The server did not answer: exit code 4.
    Unreachable(String),
    /// A governed command ended with this code.
    Ended(u8),
}

impl Failure {
    /// The exit code of the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Failed(_) => 1,
            Failure::BadInput(_) => INVALID_ARGUMENTS,
            Failure::Refused => 3,
            Failure::Unreachable(_) => 4,
            Failure::Ended(code) => *code,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(why) | Failure::BadInput(why) | Failure::Unreachable(why) => f.write_str(why),
            Failure::Refused => f.write_str("refused"),
            Failure::Ended(code) => write!(f, "the command ended with exit code {code}"),
        }
    }
}
