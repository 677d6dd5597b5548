use std::{sync::Arc, thread::sleep, time::Duration};

use fairmesh_wire::transport::Address;

use super::{
    PATIENCE, Recorder, Watcher,
    network::Runtime,
    now, readers,
    writers::{self, Line},
};
use crate::checker::{History, State};

/// Writers, readers and watchers of one store's registers.
pub(crate) struct Users {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) watchers: Vec<Watcher>,
    /// The control planes of the store; one of them serves at a time.
    control: Vec<Address>,
    /// Runtime of the users; dropping it ends them.
    pub(crate) runtime: Runtime,
}

impl Users {
    /// Starts `writers` writers, a reader and a watcher at the control planes.
    pub(crate) fn start(runtime: Runtime, control: &[Address], writers: u64) -> Self {
        let recorder = Arc::new(Recorder::new());
        writers::start(&runtime.handle, &recorder, control, writers);
        readers::start(&runtime.handle, &recorder, control, false);
        let mut users = Self { recorder, watchers: Vec::new(), control: control.to_vec(), runtime };
        users.watch("below the control plane", control);
        users
    }

    pub(crate) fn watch(&mut self, name: &str, upstreams: &[Address]) {
        self.watchers.push(Watcher::start(&self.runtime.handle, &self.recorder, name, upstreams));
    }

    /// Starts a reader at a replica.
    pub(crate) fn read(&self, replica: &Address) {
        readers::start(&self.runtime.handle, &self.recorder, std::slice::from_ref(replica), true);
    }

    /// A connection to the serving control plane.
    pub(crate) fn line(&self) -> Line {
        Line::new(&self.control)
    }

    /// Stops writers and readers, waits until every watcher has the final state, and returns the history; `None` if no
    /// control plane answers.
    pub(crate) fn quiet(&self) -> Option<History> {
        let _alone = self.runtime.handle.block_on(self.recorder.gate.write());
        let began = now();
        let end = self.end()?;
        // The checker reports a watcher that does not get there.
        while began.elapsed() < PATIENCE && !self.watchers.iter().all(|watcher| watcher.holds(&end)) {
            sleep(Duration::from_millis(10));
        }
        let mut history = self.recorder.close(end);
        history.watches = self.watchers.iter().map(Watcher::take).collect();
        Some(history)
    }

    /// Current state of the control plane.
    fn end(&self) -> Option<State> {
        let mut line = self.line();
        self.runtime.run(async move {
            let began = now();
            while began.elapsed() < PATIENCE {
                let Some(connection) = line.get().await else { continue };
                match readers::read(&connection, None).await {
                    Some(state) => return Some(state),
                    None => line.turn(),
                }
            }
            None
        })
    }
}
