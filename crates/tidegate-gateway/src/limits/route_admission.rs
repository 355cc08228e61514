//! Entering: a connection that first asks for a route is counted there.

use arrayvec::ArrayVec;

use super::connection_permit::{Connection, Held, Whose};
use super::plan::{Gauge, Level, Plan};
use super::refusal::{Kind, Refusal};
use super::{MOST_GAUGES, RateLimitManager, Refused};

impl RateLimitManager {
    /// Counts a connection at a route and its backend, and for its client, unless it is counted there already. What is refused may be
    /// asked again; the connection keeps what it has.
    pub fn enter(&self, connection: &Connection, plan: &Plan) -> Result<(), Refusal> {
        let whose = connection.client().map_or(Whose::Nobody, Whose::Own);
        self.enter_for(connection, plan, whose)
    }

    /// The same for the client whom a request names. If that is not the one who was counted at the door, the connection is counted
    /// for this one too, as at the door and at the route: once for each client that it carries, until it closes.
    pub fn enter_as(&self, connection: &Connection, plan: &Plan, client: &[u8]) -> Result<(), Refusal> {
        let is_own = connection.client() == Some(client);
        self.enter_for(connection, plan, if is_own { Whose::Own(client) } else { Whose::Carried(client) })
    }

    fn enter_for(&self, connection: &Connection, plan: &Plan, whose: Whose<'_>) -> Result<(), Refusal> {
        let mut held = connection.held();
        if self.is_current(plan) && plan.counts_everything {
            match self.ask_to_enter(&mut held, whose, plan) {
                Err(Refused::Outdated) => {}
                answer => return answer.map_err(Refused::of_connection),
            }
        }
        self.know(&plan.backend, plan.route());
        let state = self.state();
        let plan = state.plan(&plan.backend, plan.route());
        self.ask_to_enter(&mut held, whose, &plan).map_err(Refused::of_connection)
    }

    fn ask_to_enter(&self, held: &mut Held, whose: Whose<'_>, plan: &Plan) -> Result<(), Refused> {
        let of_client = |gauge: &&Gauge| gauge.level == Level::Client;
        let mut places = plan.connections.iter().filter(|gauge| !of_client(gauge));
        // Who is counted at the route and the backend is here already, whatever has become of its client's rule.
        if plan.connections.len() > 1 && places.all(|place| held.has(place) && held.has_for(whose, place)) {
            return Ok(());
        }
        let places = plan.connections.iter().filter(|gauge| !of_client(gauge) && !held.has(gauge));
        let door = matches!(whose, Whose::Carried(_)).then_some(&plan.door);
        let counts = plan.connections.iter().filter(of_client).chain(door);
        let counts = counts.filter(|gauge| whose != Whose::Nobody && !held.has_for(whose, gauge));
        let new: ArrayVec<Gauge, MOST_GAUGES> = places.chain(counts).cloned().collect();
        let lease = self.ask(Kind::Connections, &new, whose.client())?;
        match whose {
            Whose::Nobody | Whose::Own(_) => held.add(lease, &new),
            Whose::Carried(client) => {
                held.add(lease, new.iter().filter(|gauge| !of_client(gauge)));
                held.carry(client, plan.connections.iter().chain(&new));
            }
        }
        Ok(())
    }
}
