//! Test limits, created and deleted over the HTTP API, and the server's counts of them.

use serde_json::json;

use super::load_plan::{LoadPlan, LoadQuota};
use super::random::random_u64;
use super::target::BenchProtocol;
use crate::args::{BenchArgs, ServerArgs};
use crate::remote::client::{ServerClient, token};
use crate::remote::url::encoded;
use crate::remote::usage::UsageReply;
use crate::{Failure, print_message};

/// Window of the per-key item: longer than any level.
const WINDOW: &str = "24h";

/// The HTTP API of the server under test.
#[derive(Debug)]
pub(super) struct ControlApi {
    server: ServerClient,
    token: Option<String>,
    prefix: String,
}

impl ControlApi {
    /// Finds the HTTP API from the arguments.
    pub(super) fn of(args: &BenchArgs, plan: &LoadPlan) -> Result<ControlApi, Failure> {
        let url = match &args.http {
            Some(url) => url.clone(),
            None => plan.target.http().map_err(Failure::BadInput)?,
        };
        let server =
            ServerArgs { server: Some(url), token_file: args.token_file.clone(), timeout: args.timeout };
        let token = token(args.token_file.as_deref())?;
        let server = ServerClient::new(&server)?;
        // With a redis:// target the HTTP URL may be a guess; errors then name `--http`.
        let server =
            if plan.target.protocol == BenchProtocol::Resp { server.named_by("--http") } else { server };
        Ok(ControlApi { server, token, prefix: args.prefix.clone() })
    }

    /// Checks that the server is reachable and accepts the token, before many connections are opened.
    pub(super) fn check_access(&self) -> Result<(), Failure> {
        let prefix = encoded(&self.prefix);
        self.server.get(&format!("/v1/limits?limit=1&prefix={prefix}")).map(|_| ())
    }

    /// The token, which RESP connections send too.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

/// A limit that is deleted on drop.
#[derive(Debug)]
pub(super) struct TemporaryLimit<'a> {
    control: &'a ControlApi,
    id: String,
    exists: bool,
}

impl<'a> TemporaryLimit<'a> {
    /// Creates a limit with a random id.
    pub(super) fn create(control: &'a ControlApi, quota: LoadQuota) -> Result<TemporaryLimit<'a>, Failure> {
        let id = format!("{}{:016x}", control.prefix, random_u64());
        let limit = json!({
            "id": id,
            "description": "created by tidegate bench, deleted at its end",
            "items": [
                {"policy": "total", "limit": quota.total},
                {"policy": "interval", "limit": quota.per_key, "window": WINDOW, "per": "key"},
            ],
        });
        control.server.post("/v1/limits", &limit.to_string())?;
        Ok(TemporaryLimit { control, id, exists: true })
    }

    /// The id of the limit.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Reads the number of grants that the server has counted.
    pub(super) fn count(&self) -> Result<u64, Failure> {
        let reply = self.control.server.get(&format!("/v1/limits/{}/usage", encoded(&self.id)))?;
        let usage: UsageReply = reply.read()?;
        usage.of("all/total").map(|status| status.current_count).ok_or_else(|| {
            Failure::Failed(
                "the server's usage reply has no item all/total; is it a Tidegate server?".to_owned(),
            )
        })
    }

    /// Deletes the limit.
    pub(super) fn remove(mut self) -> Result<(), Failure> {
        self.exists = false;
        self.delete().inspect_err(|_| print_message(&self.leftover_notice()))
    }

    fn leftover_notice(&self) -> String {
        format!("the limit {0} may still exist; delete it with: tidegate limit delete {0}", self.id)
    }

    fn delete(&self) -> Result<(), Failure> {
        self.control.server.delete(&format!("/v1/limits/{}", encoded(&self.id)), None).map(|_| ())
    }
}

impl Drop for TemporaryLimit<'_> {
    fn drop(&mut self) {
        if self.exists {
            // Another error is already being reported; only a leftover limit needs a message.
            if self.delete().is_err() {
                print_message(&self.leftover_notice());
            }
        }
    }
}
