//! Memory of a connection that is idle after one request.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

use super::{
    Bench, Contenders,
    contenders::{Contender, Proxy},
};
use crate::report::Report;

/// Number of connections opened first, so that one-time memory of a proxy is not counted, and number of counted
/// connections. Together less than 1,024, the limit of open files on many machines.
const BEFORE: usize = 100;
const COUNTED: usize = 800;
/// Timeout for all of them; a proxy needs a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(30);
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\naccept: */*\r\n\r\n";

impl Contenders {
    /// Bytes of memory per client connection, for each proxy.
    pub(super) async fn idle(&self) -> Result<Vec<(Contender, u64)>, String> {
        let mut all = Vec::new();
        for (who, proxy) in &self.proxies {
            all.push((*who, of_each(proxy).await.map_err(|why| format!("{who}: {why}"))?));
        }
        Ok(all)
    }
}

impl Bench {
    pub(super) fn report_idle(&self, report: &mut Report, found: &[(Contender, u64)]) {
        let all: Vec<_> = found.iter().map(|(who, bytes)| format!("{who} {bytes}")).collect();
        let note = format!("bytes for a connection that idles after a request: {}", all.join(", "));
        if let Some((_, bytes)) = found.iter().find(|(who, _)| *who == Contender::Fairmesh) {
            report.figure("idle_bytes", *bytes as f64, None, note);
        }
    }
}

async fn of_each(proxy: &Proxy) -> io::Result<u64> {
    let _first = timeout(PATIENCE, answered(proxy.address, BEFORE)).await??;
    let before = proxy.process.rss_bytes();
    let _counted = timeout(PATIENCE, answered(proxy.address, COUNTED)).await??;
    Ok(proxy.process.rss_bytes().saturating_sub(before) / COUNTED as u64)
}

/// Opens connections, each of which has received one response.
async fn answered(by: SocketAddr, count: usize) -> io::Result<Vec<BufReader<TcpStream>>> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = BufReader::new(TcpStream::connect(by).await?);
        stream.write_all(GET).await?;
        let mut head = String::new();
        // The response has no body: it ends with its headers.
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if !head.starts_with("HTTP/1.1 200") {
            return Err(io::Error::other(head));
        }
        all.push(stream);
    }
    Ok(all)
}
