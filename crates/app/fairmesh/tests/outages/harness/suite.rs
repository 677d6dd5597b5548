use std::{ops::Range, thread::sleep, time::Duration};

use fairmesh_test_support::eventually_within;

use super::{Fleet, PATIENCE, Users, calls::Programs, now, writers};
use crate::checker::{History, check};

const WRITERS: u64 = 10;
/// Least numbers of writes, and of calls per region, before and after a fault.
const WRITES: u64 = 40;
const CALLS: u64 = 20;
/// Factor by which outages last longer in the long form.
const STRETCH: u32 = 20;

/// A fleet in use, with its users and programs.
pub(crate) struct Suite {
    pub(crate) users: Users,
    pub(crate) programs: Vec<Programs>,
    pub(crate) fleet: Fleet,
    long: bool,
}

impl Suite {
    /// # Errors
    /// Why this machine cannot be made into several.
    pub(crate) fn start(long: bool) -> Result<Self, String> {
        let fleet = Fleet::start()?;
        let start = |agent: &super::fleet::Agent| {
            Programs::start(agent.region, &agent.host, &agent.socket, &fleet.path("nothing"))
        };
        let programs = fleet.agents.iter().map(start).collect();
        let mut users = Users::start(fleet.desk.runtime(), &fleet.control_addresses(), WRITERS);
        for (name, replica) in [("root", &fleet.root), ("eu", &fleet.eu), ("us", &fleet.us)] {
            users.read(&replica.address());
            users.watch(&format!("below replica {name}"), &[replica.address()]);
        }
        for agent in &fleet.agents {
            users.watch(&format!("below agent {}", agent.region), std::slice::from_ref(&agent.socket));
        }
        let suite = Self { users, programs, fleet, long };
        suite.goes_on();
        Ok(suite)
    }

    /// Whether this is the long form, with long outages and large crowds.
    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// Sleeps for the length of an outage, which is longer in the long form.
    pub(crate) fn last(&self, short: Duration) {
        sleep(if self.long { STRETCH * short } else { short });
    }

    /// Waits until writes are acknowledged and calls are made in every region.
    #[track_caller]
    pub(crate) fn goes_on(&self) {
        self.writes_go_on();
        self.calls_go_on();
    }

    #[track_caller]
    pub(crate) fn writes_go_on(&self) {
        let goal = self.users.recorder.acknowledged() + WRITES;
        self.until("writes are acknowledged", || self.users.recorder.acknowledged() >= goal);
    }

    #[track_caller]
    pub(crate) fn calls_go_on(&self) {
        for programs in &self.programs {
            let goal = programs.calls() + CALLS;
            self.until("calls go on", || programs.calls() >= goal);
        }
    }

    /// Writes bulk data: these batches, with `keys` keys each and about `bytes` bytes per value; zero bytes delete the
    /// keys.
    pub(crate) fn bulk(&self, batches: Range<u64>, keys: u64, (value, bytes): (u64, usize)) {
        let mut line = self.users.line();
        self.users.runtime.run(async move {
            for batch in batches {
                writers::bulk(&mut line, batch * keys..(batch + 1) * keys, value, bytes).await;
            }
        });
    }

    /// Waits until `is_so` returns true; on timeout, panics with the logs of all processes.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        assert!(eventually_within(PATIENCE, is_so), "still not so: {what}\n{}", self.logs());
    }

    fn logs(&self) -> String {
        let tail =
            |log: String| log.lines().rev().take(12).map(|line| format!("{line}\n")).collect::<String>();
        let all = self.fleet.controls.iter().chain(self.fleet.steady());
        all.map(|daemon| format!("--- newest first\n{}", tail(daemon.log()))).collect()
    }

    /// Causes one fault, and checks everything observed from before the fault until the quiet moment after it. Returns
    /// the history.
    pub(crate) fn run(&self, name: &str, fault: impl FnOnce(&Self) -> String) -> History {
        let began = now();
        self.goes_on();
        let ends: u32 = self.fleet.steady().map(super::Daemon::ends).sum();
        let told = fault(self);
        self.goes_on();
        let Some(history) = self.users.quiet() else {
            panic!("{name}: no response to the last read\n{}", self.logs());
        };
        let (writes, reads) = (history.writes.len(), history.reads.len());
        let steps: usize = history.watches.iter().map(|watch| watch.steps.len()).sum();
        let found = check(&history);
        assert!(found.is_empty(), "{name}: {found:#?}");
        self.programs.iter().for_each(Programs::are_unharmed);
        let ended: u32 = self.fleet.steady().map(super::Daemon::ends).sum();
        assert_eq!(ended, ends, "{name}: a process ended by itself\n{}", self.logs());
        let calls: u64 = self.programs.iter().map(Programs::calls).sum();
        println!(
            "{name}: {told}; {writes} batches, {reads} reads, {steps} steps of watchers, {calls} calls so far; \
             {:.1} s",
            began.elapsed().as_secs_f64()
        );
        history
    }
}
