//! The side door: limits of the tool's own, made and removed over HTTP, and what the server has counted of them.

use serde_json::json;

use super::load_plan::{LoadPlan, LoadQuota};
use super::random::random_u64;
use super::target::BenchProtocol;
use crate::args::{BenchArgs, ServerArgs};
use crate::remote::client::{ServerClient, token};
use crate::remote::url::encoded;
use crate::remote::usage::UsageReply;
use crate::{Failure, print_message};

/// How long a key's quota lasts: longer than any level.
const WINDOW: &str = "24h";

/// A server that limits are made on.
#[derive(Debug)]
pub(super) struct ControlApi {
    server: ServerClient,
    token: Option<String>,
    prefix: String,
}

impl ControlApi {
    /// The server of the arguments, by its HTTP door.
    pub(super) fn of(args: &BenchArgs, plan: &LoadPlan) -> Result<ControlApi, Failure> {
        let url = match &args.http {
            Some(url) => url.clone(),
            None => plan.target.http().map_err(Failure::BadInput)?,
        };
        let server =
            ServerArgs { server: Some(url), token_file: args.token_file.clone(), timeout: args.timeout };
        let token = token(args.token_file.as_deref())?;
        let server = ServerClient::new(&server)?;
        // Of a server that is named by its other door, this one may have been guessed.
        let server =
            if plan.target.protocol == BenchProtocol::Resp { server.named_by("--http") } else { server };
        Ok(ControlApi { server, token, prefix: args.prefix.clone() })
    }

    /// Whether anybody is there, and lets us in: told before hundreds of connections ask the same.
    pub(super) fn check_access(&self) -> Result<(), Failure> {
        let prefix = encoded(&self.prefix);
        self.server.get(&format!("/v1/limits?limit=1&prefix={prefix}")).map(|_| ())
    }

    /// What is shown at the other door too.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

/// A limit that is there as long as somebody needs it.
#[derive(Debug)]
pub(super) struct TemporaryLimit<'a> {
    control: &'a ControlApi,
    id: String,
    exists: bool,
}

impl<'a> TemporaryLimit<'a> {
    /// Makes a limit that nobody else has.
    pub(super) fn create(control: &'a ControlApi, quota: LoadQuota) -> Result<TemporaryLimit<'a>, Failure> {
        let id = format!("{}{:016x}", control.prefix, random_u64());
        let limit = json!({
            "id": id,
            "description": "made by tidegate bench, which removes it",
            "items": [
                {"policy": "total", "limit": quota.total},
                {"policy": "interval", "limit": quota.per_key, "window": WINDOW, "per": "key"},
            ],
        });
        control.server.post("/v1/limits", &limit.to_string())?;
        Ok(TemporaryLimit { control, id, exists: true })
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// What the server says that it has granted.
    pub(super) fn count(&self) -> Result<u64, Failure> {
        let reply = self.control.server.get(&format!("/v1/limits/{}/usage", encoded(&self.id)))?;
        let usage: UsageReply = reply.read()?;
        usage.of("all/total").map(|status| status.current_count).ok_or_else(|| {
            Failure::Failed("the server does not say what it has counted; is it a Tidegate?".to_owned())
        })
    }

    /// Removes it.
    pub(super) fn remove(mut self) -> Result<(), Failure> {
        self.exists = false;
        self.delete().inspect_err(|_| print_message(&self.leftover_notice()))
    }

    fn leftover_notice(&self) -> String {
        format!("the limit {0} may still be there; remove it with: tidegate limit delete {0}", self.id)
    }

    fn delete(&self) -> Result<(), Failure> {
        self.control.server.delete(&format!("/v1/limits/{}", encoded(&self.id)), None).map(|_| ())
    }
}

impl Drop for TemporaryLimit<'_> {
    fn drop(&mut self) {
        if self.exists {
            // Something else went wrong before, and that is told by somebody else.
            if self.delete().is_err() {
                print_message(&self.leftover_notice());
            }
        }
    }
}
