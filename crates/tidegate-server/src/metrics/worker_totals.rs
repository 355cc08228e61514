//! What the workers counted, added up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_net::histogram::{DURATIONS, Sum};
use tidegate_net::metrics_page::{Kind, Page, Seconds};

use super::status_counts::Statuses;
use super::worker_metrics::{BATCH_SIZES, Cut, DoorCounts, DoorName, WorkerMetrics};

pub(super) fn write(page: &mut Page, workers: &[Arc<WorkerMetrics>]) {
    let served = Served { workers };
    served.durations(page);
    served.requests(page);
    served.decisions(page);
    served.connections(page);
}

struct Served<'a> {
    workers: &'a [Arc<WorkerMetrics>],
}

impl Served<'_> {
    fn sum(&self, door: DoorName, count: impl Fn(&DoorCounts) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|worker| count(worker.door(door)).load(Ordering::Relaxed)).sum()
    }

    fn durations(&self, page: &mut Page) {
        let help = "How long requests take, from when they were read until they are answered; for resp, what was read at once.";
        let mut family = page.family("tidegate_request_duration_seconds", Kind::Histogram, help);
        for door in DoorName::ALL {
            let sum = Sum::of(self.workers.iter().map(|worker| &worker.door(door).durations));
            let say = |nanos| Seconds(u128::from(nanos));
            sum.write(&mut family, &[("door", door.word())], &DURATIONS, say);
        }
        let help = "How many commands are read and answered at once.";
        let mut family = page.family("tidegate_resp_batch_size", Kind::Histogram, help);
        let sum = Sum::of(self.workers.iter().map(|worker| &worker.batch_sizes));
        sum.write(&mut family, &[], &BATCH_SIZES, |size| size);
    }

    fn requests(&self, page: &mut Page) {
        let help = "HTTP requests by route and status.";
        let mut family = page.family("tidegate_http_requests_total", Kind::Counter, help);
        for (route, code, count) in Statuses::sum(self.workers.iter().map(|worker| &worker.statuses)) {
            family.sample(&[("route", route.template()), ("code", code)], count);
        }
    }

    fn decisions(&self, page: &mut Page) {
        let help = "Orders that were decided, by the door they came in by; looks are not among them.";
        let mut family = page.family("tidegate_door_decisions_total", Kind::Counter, help);
        for door in DoorName::ALL {
            let label = ("door", door.word());
            family.sample(&[label, ("outcome", "granted")], self.sum(door, |counts| &counts.granted));
            family.sample(&[label, ("outcome", "refused")], self.sum(door, |counts| &counts.refused));
        }
    }

    fn connections(&self, page: &mut Page) {
        let help = "Connections that are open.";
        let mut family = page.family("tidegate_connections", Kind::Gauge, help);
        for door in DoorName::ALL {
            // What closed was opened before; read in this order there are never fewer than none.
            let closed = self.sum(door, |counts| &counts.closed);
            let open = self.sum(door, |counts| &counts.opened).saturating_sub(closed);
            family.sample(&[("door", door.word())], open);
        }
        self.by_door(
            page,
            "tidegate_connections_accepted_total",
            "Connections that were accepted.",
            |counts| &counts.opened,
        );
        let help = "Connections that were turned away because there were as many as may be.";
        self.by_door(page, "tidegate_connections_refused_total", help, |counts| &counts.refused_connections);
        let help = "Connections that the server ended, by reason.";
        let mut family = page.family("tidegate_connections_cut_total", Kind::Counter, help);
        for door in DoorName::ALL {
            for reason in Cut::ALL {
                let count = self.sum(door, |counts| &counts.cut[reason as usize]);
                family.sample(&[("door", door.word()), ("reason", reason.word())], count);
            }
        }
        let help = "Requests and commands of people without a token that anybody knows.";
        self.by_door(page, "tidegate_authentication_failures_total", help, |counts| &counts.failed_auths);
    }

    fn by_door(
        &self,
        page: &mut Page,
        name: &'static str,
        help: &'static str,
        count: impl Fn(&DoorCounts) -> &AtomicU64,
    ) {
        let mut family = page.family(name, Kind::Counter, help);
        for door in DoorName::ALL {
            family.sample(&[("door", door.word())], self.sum(door, &count));
        }
    }
}
