use crate::run;

#[test]
fn every_shell_is_told_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell], "").done();
        for command in ["acquire", "limit", "token", "serve", "simulate", "if-version"] {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
    run(&["completions", "cmd"], "").failed(2);
}
