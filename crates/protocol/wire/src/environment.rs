//! Defaults that a process takes from its environment: the paths of an agent's socket and state, the region, the host
//! name.
//!
//! Root uses system folders, and other users use their own folders. The binary and the library share these defaults,
//! so that each finds the files and sockets of the other.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use fairmesh_model::{Invalid, Location, Region};

use crate::transport::Address;

/// State folder of `part` (`agent` or `control`) when it runs as root.
pub fn system_state(part: &str) -> PathBuf {
    Path::new("/var/lib/fairmesh").join(part)
}

/// The state folder of `part` when it runs as this user: below `XDG_STATE_HOME`, otherwise below `~/.local/state`.
/// `None` for a user without a home.
pub fn own_state(part: &str) -> Option<PathBuf> {
    let base = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(base.join("fairmesh").join(part))
}

/// The socket of an agent that runs as root.
pub fn system_socket() -> PathBuf {
    "/run/fairmesh/agent.sock".into()
}

/// Socket of an agent that runs as this user: below `XDG_RUNTIME_DIR`, otherwise beside its state, for example in a
/// session of cron or `su`. `None` for a user without a home. A folder in `/tmp` was rejected: any user could create
/// it first.
pub fn own_socket() -> Option<PathBuf> {
    own_sockets().into_iter().flatten().next()
}

/// Sockets that an agent of this user may use in different kinds of sessions, in order of preference.
fn own_sockets() -> [Option<PathBuf>; 2] {
    [folder("XDG_RUNTIME_DIR").map(|folder| folder.join("fairmesh/agent.sock")), own_state("run/agent.sock")]
}

/// The socket at which a program finds an agent: the machine's socket, or the user's own socket if only that exists.
/// If neither exists, the socket that an agent started by this user will create.
pub fn agent() -> Address {
    let own = own_sockets();
    let usual = if is_root() { own[0].clone() } else { own_socket() };
    Address::Unix(
        first_existing([Some(system_socket())].into_iter().chain(own))
            .or(usual)
            .unwrap_or_else(system_socket),
    )
}

fn first_existing(sockets: impl IntoIterator<Item = Option<PathBuf>>) -> Option<PathBuf> {
    sockets.into_iter().flatten().find(|socket| socket.exists())
}

/// The host name of this machine; `None` if it has none or `/proc` is not mounted.
pub fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Whether the process runs as root, judged by the owner of `/proc/self`. False if `/proc` is not mounted.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Sockets of control planes on this machine that use the default data directory: the user's own, then the system's.
/// Only sockets that this user may use.
pub fn control_sockets() -> impl Iterator<Item = Address> {
    let folders = [own_state("control"), Some(system_state("control"))];
    folders.into_iter().flatten().map(|folder| Address::Unix(folder.join(CONTROL_SOCKET)))
}

/// The default TCP address of a control plane.
pub const CONTROL_ADDRESS: &str = "127.0.0.1:7400";

/// The socket for local users in the data directory of a control plane, if the mesh has a trust domain.
pub const CONTROL_SOCKET: &str = "control.sock";

/// The address at which a command finds a control plane: its socket if that exists, otherwise TCP.
pub fn control() -> Address {
    let is_there = |address: &Address| matches!(address, Address::Unix(path) if path.exists());
    control_sockets().find(is_there).unwrap_or_else(|| Address::Tcp(CONTROL_ADDRESS.to_owned()))
}

/// Where a program reads records and registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// Agents, tried in this order; at least one address.
    Agents(Vec<Address>),
    /// Control planes, for programs without an agent; at least one address.
    ControlPlanes(Vec<Address>),
}

/// The upstream that the environment configures, for both callers and servers: the agents in `FAIRMESH_AGENT`,
/// otherwise the control planes in `FAIRMESH_CONTROL`, otherwise the [agent](agent()) of this machine. Several
/// addresses are separated by commas. An empty variable counts as unset.
///
/// # Errors
/// If a variable contains an invalid address.
pub fn upstream() -> Result<Upstream, Invalid> {
    if let Some(agents) = addresses("FAIRMESH_AGENT")? {
        return Ok(Upstream::Agents(agents));
    }
    let control_planes = addresses("FAIRMESH_CONTROL")?.map(Upstream::ControlPlanes);
    Ok(control_planes.unwrap_or_else(|| Upstream::Agents(vec![agent()])))
}

fn addresses(name: &str) -> Result<Option<Vec<Address>>, Invalid> {
    read_addresses(&env::var(name).unwrap_or_default()).map_err(|e| e.within(name))
}

/// Parses addresses separated by commas; `None` for an empty text.
fn read_addresses(text: &str) -> Result<Option<Vec<Address>>, Invalid> {
    match text.trim() {
        "" => Ok(None),
        text => text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>().map(Some),
    }
}

/// The SPIFFE Workload API from which this process takes its identity, if `FAIRMESH_IDENTITY` selects one:
/// `spiffe:unix:/path`, or `spiffe` for the socket in `SPIFFE_ENDPOINT_SOCKET`. If it is unset or `agent`, identities
/// come from the agent: `SPIFFE_ENDPOINT_SOCKET` alone may be meant for another mesh.
///
/// # Errors
/// If a variable contains anything else.
pub fn workload_api() -> Result<Option<Address>, Invalid> {
    let text = |name| env::var(name).unwrap_or_default();
    read_identity(&text(IDENTITY), &text(SPIFFE_SOCKET))
}

/// Folder in which this process stores its certificate and key, from `FAIRMESH_IDENTITY_DIR`. A process with stored
/// files can start while its agent is unavailable.
pub fn identity_dir() -> Option<PathBuf> {
    env::var_os(IDENTITY_DIR).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The join token in `FAIRMESH_JOIN_TOKEN`; `None` if it is empty or unset.
pub fn join_token() -> Option<String> {
    env::var(JOIN_TOKEN).ok().filter(|text| !text.trim().is_empty())
}

/// Environment variable with the join token of an agent, or of a program without an agent.
pub const JOIN_TOKEN: &str = "FAIRMESH_JOIN_TOKEN";
const IDENTITY: &str = "FAIRMESH_IDENTITY";
const IDENTITY_DIR: &str = "FAIRMESH_IDENTITY_DIR";
const SPIFFE_SOCKET: &str = "SPIFFE_ENDPOINT_SOCKET";

fn read_identity(identity: &str, socket: &str) -> Result<Option<Address>, Invalid> {
    let hint = "write spiffe:unix:/path, with the socket of a SPIFFE Workload API";
    let (name, text) = match identity.trim() {
        "" | "agent" => return Ok(None),
        "spiffe" if socket.trim().is_empty() => {
            let problem = format!("is spiffe, and {SPIFFE_SOCKET} names no socket");
            return Err(Invalid::new(IDENTITY, problem, hint));
        }
        "spiffe" => (SPIFFE_SOCKET, socket.trim()),
        text => match text.strip_prefix("spiffe:") {
            Some(socket) => (IDENTITY, socket),
            None => return Err(Invalid::new(IDENTITY, format!("'{text}' is unknown"), hint)),
        },
    };
    match text.parse().map_err(|error: Invalid| error.within(name))? {
        address @ Address::Unix(_) => Ok(Some(address)),
        // Private keys would be sent in plaintext, to a server that cannot identify the user.
        Address::Tcp(_) => Err(Invalid::new(name, format!("'{text}' is no Unix socket"), hint)),
    }
}

/// The folder with the agent's copy of records on disk: `FAIRMESH_STATE_DIR`, otherwise [`agent_copy`].
pub fn copy_on_disk() -> PathBuf {
    folder("FAIRMESH_STATE_DIR").unwrap_or_else(agent_copy)
}

/// Newest readable copy of records that an agent on this machine wrote: the machine's agent or the user's own agent.
pub fn agent_copy() -> PathBuf {
    last_written([Some(system_state("agent")), own_state("agent")]).unwrap_or_else(|| system_state("agent"))
}

/// The location of this program: `given`, otherwise the region in `FAIRMESH_REGION`. `None` leaves the location to
/// the agent.
///
/// # Errors
/// If `FAIRMESH_REGION` is not a region name.
pub fn location(given: Option<Location>) -> Result<Option<Location>, Invalid> {
    const NAME: &str = "FAIRMESH_REGION";
    match (given, env::var(NAME)) {
        (None, Ok(region)) if !region.is_empty() => {
            let region = Region::new(region).map_err(|e| e.within(NAME))?;
            Ok(Some(Location::in_region(region)))
        }
        (given, _) => Ok(given),
    }
}

fn last_written(folders: impl IntoIterator<Item = Option<PathBuf>>) -> Option<PathBuf> {
    let readable = folders.into_iter().flatten().filter(|folder| fs::read_dir(folder).is_ok());
    readable.max_by_key(|folder| fs::metadata(folder).and_then(|found| found.modified()).ok())
}

/// Absolute path in an environment variable. Relative paths are ignored (XDG Base Directory Specification).
fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, SystemTime},
    };

    use super::*;

    #[test]
    fn address_variable_is_split_at_commas() {
        let read = |text| read_addresses(text).map(|found| found.map(|all| all.len()));
        assert_eq!((read(""), read(" ")), (Ok(None), Ok(None)));
        assert_eq!(read("127.0.0.1:7400"), Ok(Some(1)));
        assert_eq!(read("unix:/run/a.sock, control:7400"), Ok(Some(2)));
        assert!(read("control").is_err() && read("a:1,").is_err());
    }

    #[test]
    fn workload_api_is_used_only_if_configured() {
        let socket = "unix:///run/spire/agent.sock";
        let spire = Ok(Some(Address::Unix("/run/spire/agent.sock".into())));
        for (identity, expected) in [
            ("", Ok(None)),
            ("agent", Ok(None)),
            ("spiffe", spire.clone()),
            ("spiffe:unix:/run/spire/agent.sock", spire),
        ] {
            assert_eq!(read_identity(identity, socket), expected, "{identity}");
        }
        for (identity, socket) in [
            ("spiffe", ""),
            ("spiffe", "tcp://127.0.0.1:8081"),
            ("spiffe:127.0.0.1:1", ""),
            ("spire", socket),
        ] {
            let error = read_identity(identity, socket).unwrap_err();
            assert!(error.hint.contains("unix:/path"), "{error}");
        }
    }

    #[test]
    fn first_existing_agent_socket_is_used() {
        let root = tempfile::tempdir().unwrap();
        let [system, session, state] = ["system", "session", "state"].map(|name| root.path().join(name));
        let found =
            || first_existing([Some(system.clone()), Some(session.clone()), None, Some(state.clone())]);
        assert_eq!(found(), None);
        File::create(&state).unwrap();
        assert_eq!(
            found(),
            Some(state.clone()),
            "the agent was started in a session without a runtime folder"
        );
        File::create(&system).unwrap();
        assert_eq!(found(), Some(system.clone()));
    }

    #[test]
    fn most_recently_written_agent_copy_is_used() {
        let root = tempfile::tempdir().unwrap();
        let [system, own] = ["system", "own"].map(|name| root.path().join(name));
        let either = || last_written([Some(system.clone()), None, Some(own.clone())]);
        assert_eq!(either(), None, "no copy was written");
        fs::create_dir(&own).unwrap();
        assert_eq!(either(), Some(own.clone()));
        fs::create_dir(&system).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(3600);
        File::open(&system).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(either(), Some(own.clone()), "an agent ran as root once");
        File::open(&own).unwrap().set_modified(long_ago - Duration::from_secs(1)).unwrap();
        assert_eq!(either(), Some(system.clone()));
    }
}
