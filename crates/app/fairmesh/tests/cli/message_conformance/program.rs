//! A program that reports the received request byte for byte, and responds as the request's path demands.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

/// Starts the program; returns its port.
pub(super) fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || while serve_request(&stream).is_some() {});
        }
    });
    port
}

/// A request as it arrived.
struct Seen {
    head: String,
    body: Vec<u8>,
}

/// Serves one request; `None` at the end of the connection.
fn serve_request(stream: &TcpStream) -> Option<()> {
    // Proxies do not pipeline requests, so dropping the buffer loses no data.
    let seen = read_request(&mut BufReader::new(stream))?;
    let path = seen.head.split(' ').nth(1)?.split('?').next()?;
    let mut writer = stream;
    match path {
        "/gone" => return None,
        "/until-close" => {
            writer.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ntea").ok()?;
            return None;
        }
        "/chat" => return chat(stream),
        _ => {}
    }
    writer.write_all(&response(path, &seen)).ok()
}

fn response(path: &str, seen: &Seen) -> Vec<u8> {
    let scripted = match path {
        "/early-hints" => {
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea"
        }
        "/trailers" => {
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n3\r\ntea\r\n0\r\nx-sum: 7\r\n\r\n"
        }
        "/equal-lengths" => "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\ntea",
        "/different-lengths" => "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\ntea",
        "/no-content" => "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
        "/hop-by-hop" => {
            "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\ncontent-length: 3\r\n\r\ntea"
        }
        "/load" => {
            "HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization=0.821\r\ncontent-length: 3\r\n\r\ntea"
        }
        _ => return told(seen),
    };
    scripted.into()
}

/// A response that repeats the request, without the data of a long body.
fn told(seen: &Seen) -> Vec<u8> {
    let body = match seen.body.len() {
        0..1000 => String::from_utf8_lossy(&seen.body).into_owned(),
        length => format!("{length} bytes"),
    };
    let told = format!("{}[{body}]", seen.head);
    let length = if seen.head.starts_with("HEAD ") { String::new() } else { told.clone() };
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{length}", told.len()).into()
}

/// Switches protocols, echoes one message, and says goodbye once the client has closed its sending side.
fn chat(mut stream: &TcpStream) -> Option<()> {
    stream
        .write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello",
        )
        .ok()?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said).ok()?;
    stream.write_all(&[b"you said ", &said[..]].concat()).ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    None
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Seen> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let mut body = Vec::new();
    if lower.contains("\r\ntransfer-encoding: chunked\r\n") {
        read_chunks(reader, &mut body)?;
    } else if let Some(length) = lower.split("\r\ncontent-length: ").nth(1) {
        body.resize(length.split("\r\n").next()?.parse().ok()?, 0);
        reader.read_exact(&mut body).ok()?;
    }
    Some(Seen { head, body })
}

/// Reads a chunked body into `body`, followed by its trailers.
fn read_chunks(reader: &mut BufReader<&TcpStream>, body: &mut Vec<u8>) -> Option<()> {
    loop {
        let mut size = String::new();
        reader.read_line(&mut size).ok()?;
        let mut chunk = vec![0; usize::from_str_radix(size.trim(), 16).ok()?];
        if chunk.is_empty() {
            break;
        }
        reader.read_exact(&mut chunk).ok()?;
        reader.read_exact(&mut [0; 2]).ok()?;
        body.extend(chunk);
    }
    let mut trailer = String::new();
    while trailer.trim() != "" || trailer.is_empty() {
        trailer.clear();
        reader.read_line(&mut trailer).ok()?;
        body.extend(trailer.trim().bytes());
    }
    Some(())
}
