use crate::run;

#[test]
fn completions_of_every_shell_list_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell], "").done();
        for command in ["acquire", "limit", "token", "serve", "simulate", "if-version"] {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
    run(&["completions", "cmd"], "").failed(2);
}
