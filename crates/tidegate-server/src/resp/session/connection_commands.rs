//! Courtesies: what clients say before and beside what they came for.
//!
//! Client libraries open a connection with `HELLO`, `AUTH`, `CLIENT SETINFO` or `SELECT`, keep it with `PING`, and look around with `COMMAND`
//! and `INFO`. They get what Redis would say, as far as it is true here: there is one database, and one node.

use super::{Mouth, NOAUTH, Session};
use crate::resp::command::{Client, FORMS, Form, Hello, Inquiry};
use crate::resp::reply::{Protocol, Writer};
use crate::tokens::{Pass, Shown};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What `INFO` says.
pub(super) const INFO: &str = concat!(
    "# Server\r\nserver_name:tidegate\r\ntidegate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\nredis_mode:standalone\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n"
);
const WRONG_TOKEN: &str = "invalid username-password pair or user is disabled.";
const NO_TOKENS: &str = "AUTH <password> called without any password configured for the default user. \
                         Are you sure your configuration is correct?";
const HELLO_OUTSIDE: &str = "HELLO must be called with the client already authenticated, otherwise the HELLO \
                             <proto> AUTH <user> <pass> option can be used to authenticate the client and select \
                             the RESP protocol version at the same time";

impl Session {
    pub(super) fn auth(&mut self, token: &[u8], mouth: &mut Mouth<'_>) {
        match self.door.admit(token) {
            Some(pass) => {
                self.enter(pass, token);
                self.writer(mouth.output).simple("OK");
            }
            None if self.door.is_open() => self.writer(mouth.output).error("ERR", NO_TOKENS),
            None => self.wrong_token(mouth),
        }
    }

    fn enter(&mut self, pass: Pass, token: &[u8]) {
        self.admit(Some(pass));
        self.shown = Some(Shown::of(token));
    }

    fn wrong_token(&mut self, mouth: &mut Mouth<'_>) {
        self.tally.failed_auths += 1;
        self.failures += 1;
        self.writer(mouth.output).error("WRONGPASS", WRONG_TOKEN);
    }

    pub(super) fn hello(&mut self, hello: &Hello<'_>, mouth: &mut Mouth<'_>) {
        if let Some(token) = hello.token {
            match self.door.admit(token) {
                Some(pass) => self.enter(pass, token),
                None => return self.wrong_token(mouth),
            }
        }
        if self.pass.is_none() {
            self.tally.failed_auths += 1;
            return self.writer(mouth.output).error(NOAUTH, HELLO_OUTSIDE);
        }
        if let Some(name) = hello.name {
            self.name = name.into();
        }
        self.protocol = match hello.version {
            None => self.protocol,
            Some(3) => Protocol::Resp3,
            Some(_) => Protocol::Resp2,
        };
        let mut writer = self.writer(mouth.output);
        writer.map(7);
        for (name, value) in [("server", "tidegate"), ("version", VERSION)] {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"proto");
        writer.integer(self.protocol.number());
        writer.bulk(b"id");
        writer.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
        writer.bulk(b"modules");
        writer.array(0);
    }

    pub(super) fn commands(&self, inquiry: Inquiry, rest: &[u8], mouth: &mut Mouth<'_>) {
        let mut writer = self.writer(mouth.output);
        match inquiry {
            Inquiry::All => {
                writer.array(FORMS.len());
                for form in &FORMS {
                    describe(&mut writer, form);
                }
            }
            Inquiry::Count => writer.integer(i64::try_from(FORMS.len()).unwrap_or(i64::MAX)),
            Inquiry::List => {
                writer.array(FORMS.len());
                for form in &FORMS {
                    writer.bulk(form.name.as_bytes());
                }
            }
            Inquiry::Docs => writer.map(0),
            Inquiry::Info => {
                let arguments = self.reader.arguments(rest);
                writer.array(arguments.len().saturating_sub(2));
                for name in arguments.iter().skip(2) {
                    match Form::named(name) {
                        Some(form) => describe(&mut writer, form),
                        None => writer.nothing(),
                    }
                }
            }
        }
    }

    pub(super) fn client(&mut self, client: Client<'_>, mouth: &mut Mouth<'_>) {
        let mut writer = self.writer(mouth.output);
        match client {
            Client::Id => writer.integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            Client::SetName(name) => {
                writer.simple("OK");
                self.name = name.into();
            }
            Client::GetName if self.name.is_empty() => writer.nothing(),
            Client::GetName => writer.bulk(&self.name),
            Client::Info => {
                let name = self.name.escape_ascii();
                writer.text(&format!("id={} name={name} db=0 resp={}\n", self.id, self.protocol.number()));
            }
            Client::Noted => writer.simple("OK"),
        }
    }
}

/// What `COMMAND` says about one: name, arity, flags, and where its keys are.
fn describe(writer: &mut Writer<'_>, form: &Form) {
    writer.array(6);
    writer.bulk(form.name.as_bytes());
    writer.integer(form.arity());
    writer.array(1);
    writer.simple("fast");
    for place in [form.first_key; 3] {
        writer.integer(place);
    }
}
