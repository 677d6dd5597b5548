//! The terminal session.

use std::time::Duration;

use fairmesh_console::failure::Failure;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    TopArgs, key_bindings, screen_drawing, screen_state::Screen, snapshot::Snapshot, snapshot_source::Source,
};

/// Time between two snapshots.
const REFRESH: Duration = Duration::from_secs(2);
/// Time that the key reader waits before it checks whether the session has ended.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Shows calls until the user quits. Restores the terminal afterwards, even after a panic.
pub(crate) async fn run(args: &TopArgs, source: Source, first: Snapshot) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("the terminal cannot be used: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, Screen::new(args, first), source).await;
    ratatui::restore();
    shown.map_err(failed)
}

async fn show(terminal: &mut DefaultTerminal, mut screen: Screen, mut source: Source) -> std::io::Result<()> {
    let mut events = read_events();
    let mut read_at = Instant::now();
    let mut next = read_at + REFRESH;
    while !screen.has_ended {
        terminal.draw(|frame| screen_drawing::draw(frame, &screen))?;
        let is_due = tokio::select! {
            event = events.recv() => {
                match event {
                    Some(Event::Key(key)) if key.kind != KeyEventKind::Release => key_bindings::press(&mut screen, key),
                    Some(_) => {}
                    None => return Ok(()),
                }
                // A newly inspected service has no endpoints yet.
                screen.has_endpoints && screen.snapshot.endpoints.is_empty()
            }
            () = tokio::time::sleep_until(next) => true,
        };
        if !is_due {
            continue;
        }
        match source.read_with_endpoints(screen.looked_at()).await {
            Ok(snapshot) => {
                read_at = Instant::now();
                screen.update(snapshot);
            }
            Err(failure) => {
                screen.stale_ms = u64::try_from(read_at.elapsed().as_millis()).unwrap_or(u64::MAX);
                screen.problem = Some(failure.message().to_owned());
            }
        }
        next = Instant::now() + REFRESH;
    }
    Ok(())
}

/// Reads keys on a separate thread, which ends with the receiver.
fn read_events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEY_WAIT) {
                Ok(false) => {}
                Ok(true) => {
                    let Ok(event) = event::read() else { return };
                    if sender.blocking_send(event).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    });
    receiver
}
