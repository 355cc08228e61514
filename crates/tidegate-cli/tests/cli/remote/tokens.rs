use serde_json::Value;

use super::TestServer;
use crate::{Files, run};

#[test]
fn new_token_has_its_permissions() {
    let files = Files::new();
    let made = run(&["token", "new", "--name", "shop", "--role", "admin", "--prefix", "shop/"], "").done();
    let (secret, section) = {
        let lines: Vec<_> = made.lines().collect();
        let secret = lines.iter().find(|line| line.starts_with("tg_")).expect("a secret");
        let section = lines.iter().position(|line| *line == "auth:").expect("a section");
        ((*secret).to_owned(), lines[section..].join("\n"))
    };
    assert!(!section.contains(&secret), "the file must not know it");
    let config = files.write("tidegate.yaml", &section);
    let serving = TestServer::with_args(&["--config", &config]);

    let stranger = serving.run(&["limit", "list"]).failed(1);
    assert!(stranger.contains("TIDEGATE_TOKEN") && stranger.contains("--token-file"), "{stranger}");
    let unknown = serving.run_with_token("tg_guess", &["limit", "list"]).failed(1);
    assert!(unknown.contains("does not know the token") && !unknown.contains("tg_guess"), "{unknown}");

    let items = ["--item", "policy=day,limit=1"];
    serving.run_with_token(&secret, &[&["limit", "add", "shop/a"], &items[..]].concat()).done();
    let elsewhere =
        serving.run_with_token(&secret, &[&["limit", "add", "bank"], &items[..]].concat()).failed(1);
    assert!(
        elsewhere.contains("'shop/'") && elsewhere.contains("ask the operator of the server"),
        "{elsewhere}"
    );

    let file = files.write("token", &format!("{secret}\n"));
    serving.run(&["acquire", "shop/a", "--token-file", &file]).done();
    let file = files.write("empty", "\n");
    assert!(serving.run(&["peek", "shop/a", "--token-file", &file]).failed(2).contains("is empty"));
    assert!(
        serving
            .run_with_token("two words", &["peek", "shop/a"])
            .failed(2)
            .contains("TIDEGATE_TOKEN is not a token")
    );
}

#[test]
fn new_token_is_printed_as_json() {
    let made: Value =
        serde_json::from_str(&run(&["token", "new", "--role", "read", "--json"], "").done()).expect("JSON");
    assert!(made["secret"].as_str().expect("a secret").starts_with("tg_"));
    let hash = made["token"]["sha256"].as_str().expect("a hash");
    assert_eq!(hash.len(), 64);
    assert_eq!(made["token"]["name"], format!("token-{}", &hash[..8]));
    assert_eq!((&made["token"]["role"], &made["token"]["prefix"]), (&"read".into(), &"".into()));
    run(&["token", "new", "--role", "king"], "").failed(2);
    run(&["token"], "").failed(2);
}
