//! Moves services to another partition of the store.

use std::sync::Arc;

use fairmesh_model::{Invalid, ServiceName};
use fairmesh_store::{PartitionedStore, SplitEvent, SplitRequest, StoreError};
use fairmesh_wire::v1::{self, split_store_progress as progress};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Progress messages, followed by an error if the move fails.
pub(super) type Progress = ReceiverStream<Result<v1::SplitStoreProgress, Status>>;

/// Number of buffered progress messages. If the caller reads slowly, the move waits.
const PROGRESS_BUFFER: usize = 16;

pub(super) fn parse_request(request: v1::SplitStoreRequest) -> Result<SplitRequest, Invalid> {
    let v1::SplitStoreRequest { into, services, dry_run } = request;
    let into = into.parse().map_err(|e: Invalid| e.within("into"))?;
    let service = |(i, name): (usize, &String)| {
        let parsed: Result<ServiceName, Invalid> = name.parse();
        parsed.map(|name| name.to_string()).map_err(|e| e.within(format!("services[{i}]")))
    };
    let services = services.iter().enumerate().map(service).collect::<Result<_, _>>()?;
    Ok(SplitRequest { into, services, dry_run })
}

/// Starts the move. It continues even if the caller disconnects.
pub(super) fn start(store: Arc<PartitionedStore>, request: SplitRequest) -> Progress {
    let (sender, progress) = mpsc::channel(PROGRESS_BUFFER);
    tokio::spawn(async move {
        let (events, mut split_events) = mpsc::channel(1);
        let forward = async {
            while let Some(event) = split_events.recv().await {
                // An error only means that the caller has disconnected.
                let _ = sender.send(Ok(message(event))).await;
            }
        };
        let (ended, ()) = tokio::join!(store.split(request, events), forward);
        if let Err(error) = ended {
            tracing::warn!(%error, "moving services to another partition failed; nothing was moved");
            let _ = sender.send(Err(status(&error))).await;
        }
    });
    ReceiverStream::new(progress)
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
