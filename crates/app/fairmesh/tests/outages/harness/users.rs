use std::{sync::Arc, thread::sleep, time::Duration};

use fairmesh_wire::transport::Address;

use super::{
    PATIENCE, Recorder, Watcher,
    network::Runtime,
    now, readers,
    writers::{self, Line},
};
use crate::checker::{History, State};

/// Who writes, reads and watches the registers of one store.
pub(crate) struct Users {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) watchers: Vec<Watcher>,
    /// The control planes of the store, one of which serves at a time.
    control: Vec<Address>,
    /// Where they run. Ends with the value, and they with it.
    pub(crate) runtime: Runtime,
}

impl Users {
    /// So many writers, a reader and a watcher at the control planes.
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

    /// A reader at a replica.
    pub(crate) fn read(&self, replica: &Address) {
        readers::start(&self.runtime.handle, &self.recorder, std::slice::from_ref(replica), true);
    }

    /// A connection to whichever control plane serves.
    pub(crate) fn line(&self) -> Line {
        Line::new(&self.control)
    }

    /// Holds writers and readers, waits until every watcher has everything, and answers what was seen; `None` where no
    /// control plane answers.
    pub(crate) fn quiet(&self) -> Option<History> {
        let _alone = self.runtime.handle.block_on(self.recorder.gate.write());
        let began = now();
        let end = self.end()?;
        // One that does not get there is found by the checker.
        while began.elapsed() < PATIENCE && !self.watchers.iter().all(|watcher| watcher.holds(&end)) {
            sleep(Duration::from_millis(10));
        }
        let mut history = self.recorder.close(end);
        history.watches = self.watchers.iter().map(Watcher::take).collect();
        Some(history)
    }

    /// What the control plane holds.
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
