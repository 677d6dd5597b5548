//! One end of a connection in memory, played by a script, in virtual time that passes while both ends are idle.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, split},
    runtime::Builder,
    time::{sleep, timeout},
};

/// What the connection keeps before its writer has to wait.
pub(crate) const ROOM: usize = 16 * 1024;
/// What never takes so long is over in the end.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// After this time no reader waits.
const PATIENCE: Duration = Duration::from_secs(600);

/// What one end does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Send(Vec<u8>),
    Pause(Duration),
}

/// Runs to the end, which must come.
pub(crate) fn run<T>(what: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O asks nothing of the system");
    runtime.block_on(async { timeout(FOR_EVER, what).await.expect("it never ends") })
}

/// Does all of this, ends its side, and reads to the end: meanwhile, or only then.
pub(crate) async fn play(stream: DuplexStream, acts: Vec<Act>, reads_late: bool) -> Vec<u8> {
    let (mut reader, mut writer) = split(stream);
    let writes = async {
        for act in acts {
            let taken = match act {
                Act::Pause(time) => {
                    sleep(time).await;
                    true
                }
                Act::Send(bytes) => matches!(timeout(PATIENCE, writer.write_all(&bytes)).await, Ok(Ok(()))),
            };
            if !taken {
                break;
            }
            tokio::task::yield_now().await;
        }
        // Fails where the other end has gone.
        let _ = writer.shutdown().await;
    };
    let mut came = Vec::new();
    if reads_late {
        writes.await;
        let _ = reader.read_to_end(&mut came).await;
    } else {
        let _ = tokio::join!(writes, reader.read_to_end(&mut came));
    }
    came
}
