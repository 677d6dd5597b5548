//! gRPC calls made by ghz, a third-party caller that does much more work per call than a proxy.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use prost::Message;
use serde::Deserialize;
use tokio::time::timeout;

use super::{
    MULTIPLEXED,
    contenders::{on_path, version},
    process::launched,
};
use crate::{
    load_generator::Run,
    roles::{CALLERS, payload_of, v1::Payload},
};

/// The proto definition of the called service, for ghz.
const DEFINITION: &str = include_str!("../../../proto/fairmesh/bench/v1/echo.proto");
/// Maximum duration of a run, since calls without a response would never end.
const MOST: Duration = Duration::from_secs(60);
/// Maximum number of characters kept from an error report: ghz reports an error once per call.
const MOST_SAID: usize = 300;

/// The ghz program and the folder of its files.
pub(super) struct Ghz {
    program: PathBuf,
    dir: PathBuf,
}

/// The used part of ghz's report about a run.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    /// Duration of the run, in nanoseconds.
    total: u64,
    #[serde(default)]
    status_code_distribution: BTreeMap<String, u64>,
}

impl Ghz {
    /// Finds ghz, and writes its input files to `dir`.
    pub(super) fn find(dir: &Path) -> Result<Self, String> {
        let program = on_path("ghz").ok_or("ghz is not on the path; run scripts/setup.sh ghz")?;
        fs::write(dir.join("echo.proto"), DEFINITION).map_err(|e| e.to_string())?;
        Ok(Self { program, dir: dir.to_owned() })
    }

    /// Version that ghz prints.
    pub(super) fn version(&self) -> Result<String, String> {
        version(&self.program, "--version")
    }

    /// Makes `calls` calls with `payload` bytes each, all of which must return OK. Responses are not compared with
    /// requests, because ghz cannot; the minimal caller of this benchmark compares them.
    pub(super) async fn calls(&self, to: SocketAddr, payload: usize, calls: u64) -> Result<Run, String> {
        let (connections, at_once) = MULTIPLEXED;
        let mut command = launched(CALLERS, &self.program)?;
        command.args(["--insecure", "--call", "fairmesh.bench.v1.Echo.Echo", "--format", "json"]);
        command.arg("--proto").arg(self.dir.join("echo.proto"));
        if payload == 0 {
            // ghz treats an empty file as no data.
            command.args(["--data", "{}"]);
        } else {
            let message = self.dir.join(format!("message-{payload}"));
            let bytes = Payload { data: payload_of(payload) }.encode_to_vec();
            fs::write(&message, bytes).map_err(|e| e.to_string())?;
            command.arg("--binary-file").arg(message);
        }
        let numbers =
            [("--connections", connections as u64), ("--concurrency", at_once as u64), ("--total", calls)];
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()]);
        }
        command.arg(to.to_string());
        let ended = tokio::process::Command::from(command).kill_on_drop(true).output();
        let ended = timeout(MOST, ended).await.map_err(|_| format!("ghz has not ended within {MOST:?}"))?;
        let done = ended.map_err(|e| format!("cannot start ghz: {e}"))?;
        let said: Said = serde_json::from_slice(&done.stdout).map_err(|_| {
            let why = String::from_utf8_lossy(&done.stderr);
            format!("ghz failed: {}", why.trim().chars().take(MOST_SAID).collect::<String>())
        })?;
        let answered = said.status_code_distribution.get("OK").copied().unwrap_or_default();
        if answered != calls {
            let codes = said.status_code_distribution;
            return Err(format!("of {calls} calls of ghz {answered} were answered with OK: {codes:?}"));
        }
        Ok(Run { calls, wall_ns: said.total, cpu_ns: 0 })
    }
}
