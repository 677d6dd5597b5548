//! Last part of the demo: an unmodified program calls services whose requests the kernel sends, if eBPF is permitted.
//!
//! This part has its own service on this machine, behind `fairmesh register`: its calls are made by the kernel in place of mTLS.
//! It uses a shop service, whose servers terminate mTLS themselves, to show that requests to such servers stay with the
//! sidecar.

mod attached_programs;

use std::{collections::BTreeSet, net::Ipv4Addr, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

pub(super) use self::attached_programs::Place;
use super::{
    error::DemoError,
    fleet::Fleet,
    print_step,
    process_waits::Wait,
    topology::{DemoRegion, REGIONS},
    unmodified_programs::{ComparedCall, predict},
};

const REGION: DemoRegion = REGIONS[0];
/// The virtual address of all services.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 96, 0, 1);
/// The service on this machine, and its instances.
const SERVICE: &str = "shop/greeting";
const INSTANCES: [&str; 2] = ["greeting-eu-0", "greeting-eu-1"];
/// Number of calls to each service, on one connection.
const CALLS: u64 = 200;
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Result of the demo of the kernel form.
#[derive(Debug)]
pub(super) enum KernelForm {
    Played(Seen),
    /// The kernel form could not run, for this reason.
    Absent(String),
}

/// Results of the calls to the service behind `register`, then to one whose servers terminate mTLS.
#[derive(Debug)]
pub(super) struct Seen {
    predicted: BTreeSet<String>,
    reached: BTreeSet<String>,
    /// Numbers of requests that the kernel sent in place of mTLS, and of their responses.
    local: [u64; 2],
    /// Number of requests that the kernel sent to the other service.
    other: u64,
}

/// Attaches the BPF programs, makes the calls, and removes everything.
pub(super) async fn play(fleet: &mut Fleet) -> Result<KernelForm, DemoError> {
    // Stored in the fleet, which also stops it on an interrupt.
    match Place::attach() {
        Ok(place) => fleet.kernel = Some(place),
        Err(problem) => return Ok(KernelForm::Absent(problem)),
    }
    let seen = call_services(fleet).await;
    place(fleet)?.stop().await?;
    fleet.kernel = None;
    seen.map(KernelForm::Played)
}

fn place(fleet: &mut Fleet) -> Result<&mut Place, DemoError> {
    fleet.kernel.as_mut().ok_or_else(|| DemoError::Fleet("the kernel form is not attached".into()))
}

async fn call_services(fleet: &mut Fleet) -> Result<Seen, DemoError> {
    let programs = fleet.kernel.as_ref().map_or(Ok(Vec::new()), |place| place.programs(fleet))?;
    let folder = fleet.dir().to_owned();
    place(fleet)?.start(programs, &folder)?;
    let mut wait = Wait::new("the kernel form", &print_step);
    loop {
        let states = fleet.endpoints().await?;
        if place(fleet)?.is_up(&states)? {
            break;
        }
        wait.pause(&"its processes do not accept calls").await?;
    }
    let probe = ComparedCall { service: SERVICE, path: "/", shard: None };
    let predicted = predict(fleet, &probe).await.map_err(DemoError::Fleet)?;
    let before = place(fleet)?.counts()?;
    let reached = call(fleet, "greeting.shop", "/").await?;
    let between = place(fleet)?.counts()?;
    call(fleet, "catalog.shop", "/items/7").await?;
    let after = place(fleet)?.counts()?;
    let local = [between[0] - before[0], between[1] - before[1]];
    Ok(Seen { predicted, reached, local, other: after[0] - between[0] })
}

/// Runs an unmodified program in the callers' cgroup, and returns the distinct response texts.
async fn call(fleet: &mut Fleet, host: &str, path: &str) -> Result<BTreeSet<String>, DemoError> {
    let (script, cgroup) = (fleet.dir().join("kernel_caller.py"), place(fleet)?.callers.clone());
    std::fs::write(&script, include_str!("kernel_form/kernel_caller.py"))?;
    let mut command = Command::new(&fleet.binary);
    command.args(["kernel", "run", "--cgroup", &cgroup, "--", "python3"]).arg(script);
    command.args([&ADDRESS.to_string(), host, path, &CALLS.to_string()]);
    let output = timeout(CALL_TIMEOUT, command.stdin(Stdio::null()).kill_on_drop(true).output()).await;
    let output = output.map_err(|_| DemoError::Fleet(format!("calls of {host} took too long")))??;
    let said = String::from_utf8_lossy(&output.stdout);
    let texts = said.lines().map(|line| line.strip_prefix("200 ").map(str::to_owned));
    let texts: Option<BTreeSet<_>> = texts.collect();
    texts.filter(|_| output.status.success() && said.lines().count() as u64 == CALLS).ok_or_else(|| {
        DemoError::Fleet(format!(
            "{host} did not answer all: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        ))
    })
}

impl KernelForm {
    /// Whether calls reached other endpoints than explained, or requests took another path than expected.
    pub(super) fn differs(&self) -> bool {
        let Self::Played(seen) = self else { return false };
        let is_explained = !seen.reached.is_empty() && seen.reached.is_subset(&seen.predicted);
        !is_explained || seen.local[0] < CALLS / 2 || seen.local[1] == 0 || seen.other > 0
    }

    /// The result as text.
    pub(super) fn text(&self) -> String {
        let seen = match self {
            Self::Played(seen) => seen,
            Self::Absent(problem) => {
                return format!(
                    "Requests that the kernel sends are not shown, since eBPF is refused here: {problem}\n"
                );
            }
        };
        let names = |set: &BTreeSet<String>| set.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let [sent, answered] = seen.local;
        format!(
            "An unmodified program, {CALLS} calls of each service on one connection, by the kernel form:\n\
             {SERVICE}, on this machine: {sent} sent by the kernel in place of mTLS, {answered} of the responses too; they reached {} \
             (explain: {})\n\
             shop/catalog, whose servers terminate mTLS: {} sent by the kernel, the others by the sidecar\n",
            names(&seen.reached),
            names(&seen.predicted),
            seen.other
        )
    }

    /// The result as JSON.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Played(seen) => json!({
                "calls": CALLS,
                "explained": seen.predicted,
                "reached": seen.reached,
                "sentByKernel": seen.local[0],
                "answeredByKernel": seen.local[1],
                "sentByKernelToOthers": seen.other,
            }),
            Self::Absent(problem) => json!({ "absent": problem }),
        }
    }
}
