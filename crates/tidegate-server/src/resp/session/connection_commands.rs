//! Connection commands: `HELLO`, `AUTH`, `CLIENT`, `COMMAND`.
//!
//! Client libraries send them when a connection is opened. Replies match those of Redis as far as they are true here: one database,
//! one node.

use super::{NOAUTH, ReplySink, RespSession};
use crate::resp::command::{COMMANDS, ClientCommand, CommandQuery, CommandSpec, HelloArgs};
use crate::resp::reply::{RespVersion, RespWriter};
use crate::tokens::{Permissions, TokenHash};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The reply to `INFO`.
pub(super) const INFO: &str = concat!(
    "# Server\r\nserver_name:tidegate\r\ntidegate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\nredis_mode:standalone\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n"
);
const WRONG_TOKEN: &str = "invalid username-password pair or user is disabled.";
const NO_TOKENS: &str = "AUTH <password> called without any password configured for the default user. \
                         Are you sure your configuration is correct?";
const HELLO_NOAUTH: &str = "HELLO must be called with the client already authenticated, otherwise the HELLO \
                             <proto> AUTH <user> <pass> option can be used to authenticate the client and select \
                             the RESP protocol version at the same time";

impl RespSession {
    pub(super) fn auth(&mut self, token: &[u8], sink: &mut ReplySink<'_>) {
        match self.service.authenticate(token) {
            Some(permissions) => {
                self.log_in(permissions, token);
                self.writer(sink.output).simple("OK");
            }
            None if self.service.allows_anonymous() => self.writer(sink.output).error("ERR", NO_TOKENS),
            None => self.wrong_token(sink),
        }
    }

    fn log_in(&mut self, permissions: Permissions, token: &[u8]) {
        self.set_permissions(Some(permissions));
        self.token_hash = Some(TokenHash::of(token));
    }

    fn wrong_token(&mut self, sink: &mut ReplySink<'_>) {
        self.counts.failed_auths += 1;
        self.failures += 1;
        self.writer(sink.output).error("WRONGPASS", WRONG_TOKEN);
    }

    pub(super) fn hello(&mut self, hello: &HelloArgs<'_>, sink: &mut ReplySink<'_>) {
        if let Some(token) = hello.token {
            match self.service.authenticate(token) {
                Some(permissions) => self.log_in(permissions, token),
                None => return self.wrong_token(sink),
            }
        }
        if self.permissions.is_none() {
            self.counts.failed_auths += 1;
            return self.writer(sink.output).error(NOAUTH, HELLO_NOAUTH);
        }
        if let Some(name) = hello.name {
            self.name = name.into();
        }
        self.protocol = match hello.version {
            None => self.protocol,
            Some(3) => RespVersion::Resp3,
            Some(_) => RespVersion::Resp2,
        };
        let mut writer = self.writer(sink.output);
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

    pub(super) fn commands(&self, query: CommandQuery, rest: &[u8], sink: &mut ReplySink<'_>) {
        let mut writer = self.writer(sink.output);
        match query {
            CommandQuery::All => {
                writer.array(COMMANDS.len());
                for spec in &COMMANDS {
                    describe(&mut writer, spec);
                }
            }
            CommandQuery::Count => writer.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX)),
            CommandQuery::List => {
                writer.array(COMMANDS.len());
                for spec in &COMMANDS {
                    writer.bulk(spec.name.as_bytes());
                }
            }
            CommandQuery::Docs => writer.map(0),
            CommandQuery::Info => {
                let arguments = self.reader.arguments(rest);
                writer.array(arguments.len().saturating_sub(2));
                for name in arguments.iter().skip(2) {
                    match CommandSpec::named(name) {
                        Some(spec) => describe(&mut writer, spec),
                        None => writer.null(),
                    }
                }
            }
        }
    }

    pub(super) fn client(&mut self, client: ClientCommand<'_>, sink: &mut ReplySink<'_>) {
        let mut writer = self.writer(sink.output);
        match client {
            ClientCommand::Id => writer.integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            ClientCommand::SetName(name) => {
                writer.simple("OK");
                self.name = name.into();
            }
            ClientCommand::GetName if self.name.is_empty() => writer.null(),
            ClientCommand::GetName => writer.bulk(&self.name),
            ClientCommand::Info => {
                let name = self.name.escape_ascii();
                writer.text(&format!("id={} name={name} db=0 resp={}\n", self.id, self.protocol.number()));
            }
            ClientCommand::Noted => writer.simple("OK"),
        }
    }
}

/// The description of a command in `COMMAND`: name, arity, flags and key positions.
fn describe(writer: &mut RespWriter<'_>, spec: &CommandSpec) {
    writer.array(6);
    writer.bulk(spec.name.as_bytes());
    writer.integer(spec.arity());
    writer.array(1);
    writer.simple("fast");
    for key_position in [spec.first_key; 3] {
        writer.integer(key_position);
    }
}
