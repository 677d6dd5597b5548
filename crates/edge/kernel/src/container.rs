//! Containers: programs in network namespaces of their own, in which the proxy listens too.
//!
//! Whoever may enter a namespace opens a listener there and passes it to the proxy, which therefore needs no capability. With
//! it goes a descriptor of a process of the container: the listener keeps the namespace alive, so the proxy closes it when
//! that process has ended.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    process, str,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{
    KernelError,
    cgroup::cgroup_of,
    network_namespace::{identity, namespace_of, netns_cookie, within},
};

/// A process in a network namespace, which stands for a container.
#[derive(Debug)]
pub struct Container {
    pid: u32,
    process: OwnedFd,
    namespace: File,
    namespace_identity: (u64, u64),
    cgroup: String,
}

impl Container {
    /// The container of this process.
    ///
    /// # Errors
    /// When the process has ended, or this user may not look at it.
    pub fn of(pid: u32) -> Result<Self, KernelError> {
        let found = Self::find(pid).map_err(|source| KernelError::Container {
            pid,
            source,
            advice: "give the id of a process of the container, as 'docker inspect' or 'crictl inspect' shows it, and run this as root",
        })?;
        Ok(found)
    }

    fn find(pid: u32) -> io::Result<Self> {
        let ended = || io::Error::from(io::ErrorKind::NotFound);
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(ended)?;
        let process = pidfd_open(raw, PidfdFlags::empty())?;
        let namespace = namespace_of(pid)?;
        let cgroup = cgroup_of(&pid.to_string()).ok_or_else(ended)?;
        // Read last: until then, no other process can have got the number of this one.
        if has_been_waited_for(&process)? {
            return Err(ended());
        }
        let namespace_identity = identity(&namespace)?;
        Ok(Self { pid, process, namespace, namespace_identity, cgroup })
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The path of the process's cgroup, such as `/shop`.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// A descriptor of the process, which is readable once the process has ended.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// What tells the container's network namespace from others.
    pub fn namespace(&self) -> (u64, u64) {
        self.namespace_identity
    }

    /// Whether the process is in the network namespace of another process.
    pub fn shares_network_with(&self, other: u32) -> bool {
        namespace_of(other)
            .and_then(|other| identity(&other))
            .is_ok_and(|other| other == self.namespace_identity)
    }

    /// Opens a listener for the proxy in the container's network namespace. Returns it with the namespace's number, as in
    /// [`Listening::namespaces`](crate::Listening::namespaces).
    ///
    /// # Errors
    /// When this process may not enter the namespace, or its loopback interface is down.
    pub fn open_listener(&self) -> Result<(TcpListener, u64), KernelError> {
        let opened = within(&self.namespace, || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let opened = opened.and_then(|listener| {
            listener.set_nonblocking(true)?;
            let cookie = netns_cookie(&listener)?;
            Ok((listener, cookie))
        });
        opened.map_err(|source| KernelError::Container {
            pid: self.pid,
            source,
            advice: "its loopback interface must be up (ip link set lo up), and this command must run as root",
        })
    }
}

/// Whether a process has ended and its number is free.
fn has_been_waited_for(process: &OwnedFd) -> io::Result<bool> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    Ok(number.is_none_or(|number| number.trim() == "-1"))
}

/// Where a proxy takes listeners of containers: an abstract address in its network namespace, without a file, so that nothing is
/// left of a killed proxy. The kernel chooses a number that is free, and the maps tell root and the owner of the maps which: no
/// other program can have taken a known address first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerSocket(u32);

impl ContainerSocket {
    /// Opens the socket at which this process takes listeners of containers.
    ///
    /// # Errors
    /// When this process has no descriptors left, or all numbers are taken.
    pub fn open() -> io::Result<(UnixListener, Self)> {
        // Without a path, the kernel chooses five hexadecimal digits (unix(7), autobind).
        let socket = UnixListener::bind("")?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let name = address.as_abstract_name().and_then(|name| str::from_utf8(name).ok());
        let number = name.and_then(|name| u32::from_str_radix(name, 16).ok());
        let number = number.ok_or_else(|| io::Error::other(format!("{address:?} is not a number")))?;
        Ok((socket, Self(number)))
    }

    /// Connects to the socket of a proxy, in the proxy's network namespace.
    ///
    /// # Errors
    /// When the proxy has ended.
    pub fn connect(self, proxy: u32) -> io::Result<UnixStream> {
        let address = SocketAddr::from_abstract_name(format!("{:05x}", self.0))?;
        let connect = || UnixStream::connect_addr(&address);
        let stream = match proxy == process::id() {
            true => connect()?,
            false => {
                let namespace = namespace_of(proxy)?;
                match identity(&namespace)? == identity(&namespace_of(process::id())?)? {
                    // Without the rights to enter namespaces too, as in a proxy that its successor replaces.
                    true => connect()?,
                    false => within(&namespace, connect)?,
                }
            }
        };
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// As in the maps.
    pub(crate) fn recorded(self) -> u32 {
        self.0 + 1
    }

    /// The socket recorded in the maps; `None` if there is none.
    pub(crate) fn of_recorded(recorded: u32) -> Option<Self> {
        recorded.checked_sub(1).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ended_process_is_no_container() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let refused = Container::of(pid).unwrap_err().to_string();
        assert!(refused.contains(&pid.to_string()) && refused.contains("docker inspect"), "{refused}");
    }

    #[test]
    fn sockets_for_listeners_of_containers_have_addresses_of_their_own() {
        let opened = [(); 2].map(|()| ContainerSocket::open().unwrap());
        for (listener, socket) in &opened {
            let socket = ContainerSocket::of_recorded(socket.recorded()).unwrap();
            let _stream = socket.connect(process::id()).unwrap();
            listener.accept().unwrap();
        }
        assert_ne!(opened[0].1, opened[1].1);
    }
}
