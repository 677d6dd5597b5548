//! Two network namespaces, and a link between them with a delay.
//!
//! The link delays packets, so that TCP pays for connecting and slow start as over a real distance; a relay of streams
//! would avoid both. Many kernels cannot delay packets, so this code does, between two tunnel devices.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::AsFd as _,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::time::Instant;

/// Addresses of both places on the link.
pub(super) const NEAR: &str = "10.77.1.1";
pub(super) const FAR: &str = "10.77.2.1";
/// Name of the tunnel devices.
const DEVICE: &str = "distance";
/// MTU of the link, in bytes.
const MTU: usize = 1500;
/// Maximum number of packets in flight in one direction. Beyond it, senders find the link full.
const UNDER_WAY: usize = 8192;

/// Two places with the link between them. Exists as long as this process.
pub(super) struct Link {
    pub(super) near: Place,
    pub(super) far: Place,
}

/// A network namespace. It has no name and disappears with the process that runs in it.
pub(super) struct Place {
    stays: Child,
}

impl Link {
    /// Creates a link with `delay` each way.
    ///
    /// # Errors
    /// If this process lacks the permission.
    pub(super) fn new(delay: Duration) -> Result<Self, String> {
        let (near, far) = (Place::new()?, Place::new()?);
        let (here, there) = (near.end(NEAR, FAR)?, far.end(FAR, NEAR)?);
        let copy = |end: &File| end.try_clone().map_err(|e| e.to_string());
        carry(copy(&here)?, copy(&there)?, delay);
        carry(there, here, delay);
        Ok(Self { near, far })
    }
}

impl Place {
    fn new() -> Result<Self, String> {
        let failed =
            |e: std::io::Error| format!("no network of its own: {e}; this needs root, and util-linux");
        // The process ends when this one does, and with it the namespace. Its echo shows that the namespace exists.
        let mut stays = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (input, output) = (stays.stdin.as_mut(), stays.stdout.as_mut());
        let (input, output) = input.zip(output).ok_or("there are no pipes")?;
        input.write_all(b"\n").map_err(failed)?;
        output.read_exact(&mut [0]).map_err(failed)?;
        let place = Self { stays };
        place.ip("link set lo up")?;
        Ok(place)
    }

    /// Path by which other processes enter the namespace.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.stays.id())
    }

    /// Creates one end of the link in this namespace.
    fn end(&self, own: &str, other: &str) -> Result<File, String> {
        let path = self.path();
        let opened = thread::spawn(move || enter(&path).and_then(|()| tunnel())).join();
        let end = opened.map_err(|_| "the thread that makes a tunnel has panicked".to_owned())??;
        self.ip(&format!("address add {own} peer {other} dev {DEVICE}"))?;
        self.ip(&format!("link set {DEVICE} mtu {MTU} txqueuelen {UNDER_WAY} up"))?;
        Ok(end)
    }

    fn ip(&self, words: &str) -> Result<(), String> {
        let path = format!("--net={}", self.path());
        let done = Command::new("nsenter").args([&path, "ip"]).args(words.split(' ')).output();
        let done = done.map_err(|e| format!("cannot run nsenter: {e}"))?;
        let complaint = || format!("ip {words}: {}", String::from_utf8_lossy(&done.stderr).trim());
        if done.status.success() { Ok(()) } else { Err(complaint()) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.stays.kill();
        let _ = self.stays.wait();
    }
}

/// Moves this thread, and processes that it starts, to a network namespace.
///
/// # Errors
/// If the namespace does not exist, or this process lacks the permission.
pub(crate) fn enter(path: &str) -> Result<(), String> {
    let entered = File::open(path).and_then(|place| {
        move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).map_err(Into::into)
    });
    entered.map_err(|e| format!("cannot enter {path}: {e}"))
}

/// A tunnel device in this thread's network namespace. Packets sent to it are read here.
#[allow(unsafe_code, reason = "the system makes tunnels by a call that no library has")]
fn tunnel() -> Result<File, String> {
    use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

    /// `struct ifreq`, 40 bytes, with flags in place of the union.
    #[repr(C)]
    struct Wanted {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    const MAKE: Opcode = opcode::write::<libc::c_int>(b'T', 202);
    /// `IFF_TUN | IFF_NO_PI`: IP packets without a header.
    const BARE: u16 = 0x1 | 0x1000;

    let failed = |e: std::io::Error| format!("no tunnel device: {e}; this needs root, and /dev/net/tun");
    let device = File::options().read(true).write(true).open("/dev/net/tun").map_err(failed)?;
    let mut wanted = Wanted { name: [0; 16], flags: BARE, rest: [0; 22] };
    wanted.name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    // SAFETY: this is TUNSETIFF, which reads an `ifreq` and writes it back. `Wanted` has its size and layout, and
    // outlives the call.
    unsafe { ioctl(&device, Updater::<MAKE, Wanted>::new(&mut wanted)) }.map_err(|e| failed(e.into()))?;
    Ok(device)
}

/// Forwards packets in one direction forever, each after `delay`.
fn carry(mut from: File, mut to: File, delay: Duration) {
    let (sent, on_their_way) = mpsc::sync_channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    thread::spawn(move || {
        let mut packet = [0; MTU + 100];
        while let Ok(size @ 1..) = from.read(&mut packet) {
            if sent.send((Instant::now() + delay, packet[..size].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, packet) in on_their_way {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A packet that the device refuses is lost, as packets may be.
            let _ = to.write(&packet);
        }
    });
}
