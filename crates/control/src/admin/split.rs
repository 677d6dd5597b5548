//! Moves services to another part of the store.

use std::sync::Arc;

use fairmesh_model::{Invalid, ServiceName};
use fairmesh_store::{PartitionedStore, SplitEvent, SplitRequest, StoreError};
use fairmesh_wire::v1::{self, split_store_progress as progress};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// How far it is, and how it ended.
pub(super) type Progress = ReceiverStream<Result<v1::SplitStoreProgress, Status>>;

/// How many words of progress wait for a caller who reads slowly; the move waits too, then.
const WAITING: usize = 16;

pub(super) fn wish(request: v1::SplitStoreRequest) -> Result<SplitRequest, Invalid> {
    let v1::SplitStoreRequest { into, services, dry_run } = request;
    let into = into.parse().map_err(|e: Invalid| e.within("into"))?;
    let service = |(i, name): (usize, &String)| {
        let parsed: Result<ServiceName, Invalid> = name.parse();
        parsed.map(|name| name.to_string()).map_err(|e| e.within(format!("services[{i}]")))
    };
    let services = services.iter().enumerate().map(service).collect::<Result<_, _>>()?;
    Ok(SplitRequest { into, services, dry_run })
}

/// Starts it: it goes on though nobody listens.
pub(super) fn start(store: Arc<PartitionedStore>, wish: SplitRequest) -> Progress {
    let (told, heard) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let (events, mut happened) = mpsc::channel(1);
        let telling = async {
            while let Some(event) = happened.recv().await {
                // A caller that left does not take it back.
                let _ = told.send(Ok(message(event))).await;
            }
        };
        let (ended, ()) = tokio::join!(store.split(wish, events), telling);
        if let Err(error) = ended {
            tracing::warn!(%error, "nothing was moved to another part of the store");
            let _ = told.send(Err(status(&error))).await;
        }
    });
    ReceiverStream::new(heard)
}

fn message(event: SplitEvent) -> v1::SplitStoreProgress {
    let event = match event {
        SplitEvent::Planned { from, to, services, records, bytes } => {
            progress::Event::Plan(progress::Plan { from, to, services, records, bytes })
        }
        SplitEvent::Copied(records) => progress::Event::Copied(records),
        SplitEvent::Verified(records) => progress::Event::Verified(records),
        SplitEvent::Moved { version, paused: held } => {
            let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
            progress::Event::Moved(progress::Moved { version, held_ms })
        }
        SplitEvent::Done => progress::Event::Done(true),
    };
    v1::SplitStoreProgress { event: Some(event) }
}

fn status(error: &StoreError) -> Status {
    match error {
        StoreError::Unavailable { .. } => Status::aborted(error.to_string()),
        _ => Status::failed_precondition(error.to_string()),
    }
}
