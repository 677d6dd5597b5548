//! Cgroups and processes of this part, removed together.

use std::{
    io,
    path::{Path, PathBuf},
    process,
};

use fairmesh_kernel::{Attachments, Counter, KernelError, Selection, attach, detach, probe, status};
use fairmesh_model::EndpointState;

use super::{ADDRESS, INSTANCES, REGION, SERVICE};
use crate::{
    error::DemoError,
    fleet::{self, Fleet, STOP_TIMEOUT},
    process::{Process, Program},
};

/// Attached BPF programs, with a folder and cgroups used only by this process.
#[derive(Debug)]
pub(crate) struct Place {
    pins: PathBuf,
    /// Cgroups of the callers and of the servers.
    pub(super) callers: String,
    servers: String,
    processes: Vec<Process>,
}

impl Place {
    /// Attaches the BPF programs. The error is the kernel's reason for refusing.
    pub(super) fn attach() -> Result<Self, String> {
        let own = format!("fairmesh-demo-{}", process::id());
        let pins = Path::new("/sys/fs/bpf").join(&own);
        if let Some(problem) = probe(&pins).into_iter().find_map(|check| check.problem) {
            return Err(problem);
        }
        let place = Self {
            pins,
            callers: format!("/{own}-callers"),
            servers: format!("/{own}-servers"),
            processes: Vec::new(),
        };
        let to = Attachments {
            callers: place.callers.clone(),
            selection: Selection { networks: vec![(ADDRESS.into(), 32)], ports: vec![80] },
            servers: vec![place.servers.clone()],
            ..Attachments::default()
        };
        match attach(&place.pins, &to) {
            Ok(_) => Ok(place),
            Err(error) => {
                let _ = place.detach();
                Err(error.to_string())
            }
        }
    }

    /// Returns the servers, which run in their cgroup, and the proxy, which runs outside.
    pub(super) fn programs(&self, fleet: &Fleet) -> Result<Vec<Program>, DemoError> {
        let script = fleet.dir().join("greeting.py");
        std::fs::write(&script, include_str!("greeting.py"))?;
        let mut programs = Vec::new();
        let program = |name: &str, args: Vec<String>| Program {
            name: name.to_owned(),
            binary: fleet.binary.clone(),
            args: args.into_iter().map(Into::into).collect(),
        };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let agent = fleet.agent_socket(REGION).to_string();
        for instance in INSTANCES {
            let address = fleet::free_port()?;
            let (binary, file) = (fleet.binary.display().to_string(), script.display().to_string());
            let run = words(&format!("kernel run --cgroup {} --", self.servers));
            let register =
                format!("register {SERVICE} --protocol http1 --instance {instance} --address {address}");
            let server = ["--agent", &agent, "--", "python3", &file, &address.port().to_string(), instance];
            let args = [run, vec![binary], words(&register), server.map(str::to_owned).to_vec()].concat();
            programs.push(program(instance, args));
        }
        let listener = format!("kernel:{}+bpffs={}", fleet::free_port()?, self.pins.display());
        // With an access log, responses would have to go through the proxy.
        let proxy = words("proxy --admin none --access-log off --client-id kernel");
        let proxy = [proxy, ["--agent", &agent, "--listen", &listener].map(str::to_owned).to_vec()].concat();
        programs.push(program("kernel-sidecar", proxy));
        Ok(programs)
    }

    pub(super) fn start(&mut self, programs: Vec<Program>, folder: &Path) -> Result<(), DemoError> {
        for program in programs {
            self.processes.push(Process::start(program, folder)?);
        }
        Ok(())
    }

    /// Whether the servers accept calls, according to their states, and connections go to the proxy.
    pub(super) fn is_up(&mut self, states: &[(String, EndpointState)]) -> Result<bool, DemoError> {
        let serves = |instance: &&str| {
            states.iter().any(|(name, state)| name == instance && *state == EndpointState::Serving)
        };
        if INSTANCES.iter().all(serves) && status(&self.pins).is_ok_and(|now| now.proxy.is_some()) {
            return Ok(true);
        }
        self.processes.iter_mut().try_for_each(fleet::running)?;
        Ok(false)
    }

    /// Numbers of requests that the kernel sent in place of mTLS, and of responses that it sent.
    pub(super) fn counts(&self) -> Result<[u64; 2], DemoError> {
        let status = status(&self.pins).map_err(|error| DemoError::Fleet(error.to_string()))?;
        let count =
            |which| status.counters.iter().find(|(one, _)| *one == which).map_or(0, |(_, count)| *count);
        Ok([count(Counter::Permitted), count(Counter::AnsweredDirectly)])
    }

    /// Ends the processes, and detaches the BPF programs.
    pub(crate) async fn stop(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        for process in &mut self.processes {
            outcome = outcome.and(process.stop(STOP_TIMEOUT).await.map(drop));
        }
        outcome.and(self.detach().map_err(io::Error::other))
    }

    fn detach(&self) -> Result<(), KernelError> {
        match detach(&self.pins) {
            Ok(_) | Err(KernelError::NotAttached(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
