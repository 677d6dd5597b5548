use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fairmesh_model::Cursor;
use fairmesh_wire::{handshake::Connection, transport::Address, v1};
use tokio::{runtime::Handle, time::timeout};

use super::{Recorder, registers, writers::Line};
use crate::checker::{Cell, Read, State};

/// Pause of a reader between two reads.
const PAUSE: Duration = Duration::from_millis(40);
/// Time limit of a read.
const ANSWER: Duration = Duration::from_secs(2);

/// Reads all registers, at `at_least` if given, otherwise linearizably.
pub(crate) async fn read(connection: &Connection, at_least: Option<Cursor>) -> Option<State> {
    let prefixes = vec![registers::folder().to_string()];
    let request = v1::ReadRequest { prefixes, at_least: at_least.map(Into::into) };
    let answer = timeout(ANSWER, connection.rib().read(request)).await.ok()?.ok()?.into_inner();
    let at = Cursor::try_from(answer.at.unwrap()).unwrap().number(0);
    let cell = |entry: v1::Entry| {
        let cell = Cell { value: registers::read_value(&entry.value), revision: entry.revision };
        (registers::read_key(&entry.key), cell)
    };
    Some(State { at, cells: answer.entries.into_iter().map(cell).collect::<BTreeMap<_, _>>() })
}

/// Starts a reader at the control planes or at a replica. At a replica, each read requests at least the newest
/// acknowledged revision.
pub(crate) fn start(runtime: &Handle, recorder: &Arc<Recorder>, addresses: &[Address], at_replica: bool) {
    let (recorder, mut line) = (recorder.clone(), Line::new(addresses));
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(PAUSE).await;
            let _pass = recorder.gate.read().await;
            let Some(connection) = line.get().await else { continue };
            let Some(store) = connection.hello.store else {
                line.turn();
                continue;
            };
            let at_least = at_replica.then(|| recorder.newest());
            let (invoked, asked) = (recorder.time(), at_least.map(|at| (store, at)));
            let asked = asked.map(|(store, at)| Cursor { store, numbers: BTreeMap::from([(0, at)]) });
            match read(&connection, asked).await {
                Some(state) => {
                    recorder.read(Read { invoked, returned: recorder.time(), at_least, state });
                }
                None => line.turn(),
            }
        }
    });
}
