//! The terminal below the line editor: checks for input, discards input, and restores modes.
//!
//! The line editor of the chat reads keys in its own mode of the terminal. This module changes single settings of that mode.

#[cfg(unix)]
pub use unix::{discard_input, restore, return_when_empty, save, wait_for_input};

#[cfg(not(unix))]
pub use other::{discard_input, restore, return_when_empty, save, wait_for_input};

#[cfg(unix)]
mod unix {
    use std::io::{Read, Write, stdin, stdout};
    use std::os::fd::AsFd;
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};

    /// Modes of the terminal before a line was edited.
    static SAVED: Mutex<Option<Termios>> = Mutex::new(None);
    /// Turns off the terminal's marks around pasted text.
    const PASTE_UNMARKED: &str = "\x1b[?2004l";
    /// Milliseconds of silence after which a paste has ended.
    const PAUSE_MS: u16 = 40;
    /// Longest time for which endless input is discarded.
    const LONGEST_DISCARD: Duration = Duration::from_secs(3);

    /// True if a key or a byte of a paste arrives within `milliseconds`.
    pub fn wait_for_input(milliseconds: u16) -> bool {
        let input = stdin();
        let mut waited = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        poll(&mut waited, PollTimeout::from(milliseconds)).is_ok_and(|ready| ready > 0)
    }

    /// Chooses whether reads in the line editor's mode return nothing without input (`true`) or wait for input. Returns false if
    /// the terminal cannot do that.
    pub fn return_when_empty(at_once: bool) -> bool {
        let input = stdin();
        let Ok(mut modes) = tcgetattr(&input) else { return false };
        modes.control_chars[SpecialCharacterIndices::VMIN as usize] = u8::from(!at_once);
        modes.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        tcsetattr(&input, SetArg::TCSANOW, &modes).is_ok()
    }

    /// Discards the waiting input and the rest of the paste that it belongs to.
    pub fn discard_input() {
        let input = stdin();
        let Ok(modes) = tcgetattr(&input) else { return };
        let mut unseen = modes.clone();
        unseen.local_flags &= !(LocalFlags::ECHO | LocalFlags::ICANON);
        unseen.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        unseen.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        if tcsetattr(&input, SetArg::TCSANOW, &unseen).is_err() {
            return;
        }
        let end = Instant::now() + LONGEST_DISCARD;
        let mut bytes = [0; 4096];
        while wait_for_input(PAUSE_MS) && Instant::now() < end {
            if !matches!(input.lock().read(&mut bytes), Ok(1..)) {
                break;
            }
        }
        // A terminal that has gone has no modes either.
        let _ = tcsetattr(&input, SetArg::TCSANOW, &modes);
    }

    /// Saves the terminal modes for [`restore`].
    pub fn save() {
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = tcgetattr(stdin()).ok();
    }

    /// Restores the terminal modes saved by [`save`], for a process that ends while a line is edited.
    pub fn restore() {
        if let Some(modes) = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The process ends anyway.
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, &modes);
            let mut out = stdout();
            let _ = out.write_all(format!("{PASTE_UNMARKED}\n").as_bytes());
            let _ = out.flush();
        }
    }
}

#[cfg(not(unix))]
mod other {
    /// Returns false, since this system cannot check for input.
    pub fn wait_for_input(_: u16) -> bool {
        false
    }

    /// Returns false, since consoles have no such mode.
    pub fn return_when_empty(_: bool) -> bool {
        false
    }

    /// Does nothing on this system.
    pub fn discard_input() {}

    /// Does nothing on this system.
    pub fn save() {}

    /// Does nothing on this system.
    pub fn restore() {}
}
