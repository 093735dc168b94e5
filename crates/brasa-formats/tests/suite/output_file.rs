//! Outputs: what they replace, what they keep, and what they leave behind.

use std::fs::{self, File};
use std::io::Write;

use brasa_formats::{Existing, FormatError, OutputFile};

use crate::scratch::Scratch;

fn write(path: &std::path::Path, existing: Existing, text: &str) -> Result<(), FormatError> {
    let mut output = OutputFile::create(path, existing)?;
    output.write_all(text.as_bytes()).unwrap();
    output.commit()
}

#[test]
fn a_file_is_replaced_only_if_it_may_be() {
    let scratch = Scratch::new("a_file_is_replaced_only_if_it_may_be");
    let path = scratch.path("out");
    write(&path, Existing::Keep, "first").unwrap();
    let error = write(&path, Existing::Keep, "second").unwrap_err();
    assert!(matches!(&error, FormatError::Exists { path: found } if *found == path), "{error}");
    assert!(error.to_string().ends_with("out exists"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    write(&path, Existing::Replace, "third").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "third");
    assert_eq!(scratch.names(), ["out"]);
}

#[test]
fn directories_and_missing_folders_are_refused() {
    let scratch = Scratch::new("directories_and_missing_folders_are_refused");
    for path in [scratch.path(""), scratch.path("no/such/place"), "/".into(), "".into()] {
        let error = write(&path, Existing::Replace, "x").unwrap_err();
        assert!(matches!(error, FormatError::Io { .. }), "{}: {error}", path.display());
    }
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn an_abandoned_output_leaves_the_old_file() {
    let scratch = Scratch::new("an_abandoned_output_leaves_the_old_file");
    let path = scratch.path("out");
    fs::write(&path, "old").unwrap();
    let mut output = OutputFile::create(&path, Existing::Replace).unwrap();
    output.write_all(b"half").unwrap();
    assert_eq!(scratch.names().len(), 2);
    drop(output);
    assert_eq!(scratch.names(), ["out"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn files_that_a_killed_process_left_are_removed() {
    let scratch = Scratch::new("files_that_a_killed_process_left_are_removed");
    let path = scratch.path("out");
    for name in [".out.12-0.partial", ".out.x.partial", ".other.12-0.partial", ".out.12-0.partial.txt"] {
        fs::write(scratch.path(name), "stale").unwrap();
    }
    let busy = File::create(scratch.path(".out.13-0.partial")).unwrap();
    busy.try_lock().unwrap();
    let output = OutputFile::create(&path, Existing::Keep).unwrap();
    assert_eq!(output.removed(), [scratch.path(".out.12-0.partial")]);
    // A second writer of the same file takes the first for alive.
    let second = OutputFile::create(&path, Existing::Keep).unwrap();
    assert_eq!(second.removed(), [""; 0].map(std::path::PathBuf::from));
    output.commit().unwrap();
    drop(second);
    let others = [".other.12-0.partial", ".out.12-0.partial.txt", ".out.13-0.partial", ".out.x.partial"];
    assert_eq!(scratch.names(), [&others[..], &["out"]].concat());
}

#[cfg(unix)]
mod unix {
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        let scratch = Scratch::new("a_replaced_file_keeps_its_permissions");
        let path = scratch.path("out");
        for mode in [0o600, 0o640, 0o777] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let output = OutputFile::create(&path, Existing::Replace).unwrap();
            for name in scratch.names() {
                let partial = fs::metadata(scratch.path(&name)).unwrap();
                assert_eq!(partial.permissions().mode() & 0o777, mode, "{name}");
            }
            output.commit().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn links_stay_and_their_targets_are_replaced() {
        let scratch = Scratch::new("links_stay_and_their_targets_are_replaced");
        fs::create_dir(scratch.path("folder")).unwrap();
        fs::write(scratch.path("folder/target"), "old").unwrap();
        symlink("folder/target", scratch.path("link")).unwrap();
        symlink("link", scratch.path("link to link")).unwrap();
        symlink("folder/new", scratch.path("dangling")).unwrap();
        symlink("loop", scratch.path("loop")).unwrap();
        let link = scratch.path("link to link");
        assert!(matches!(write(&link, Existing::Keep, "x").unwrap_err(), FormatError::Exists { .. }));
        write(&link, Existing::Replace, "new").unwrap();
        assert_eq!(fs::read_to_string(scratch.path("folder/target")).unwrap(), "new");
        write(&scratch.path("dangling"), Existing::Keep, "there").unwrap();
        assert_eq!(fs::read_to_string(scratch.path("folder/new")).unwrap(), "there");
        assert!(matches!(
            write(&scratch.path("loop"), Existing::Replace, "x").unwrap_err(),
            FormatError::Io { .. }
        ));
        for name in ["link", "link to link", "dangling", "loop"] {
            assert!(fs::symlink_metadata(scratch.path(name)).unwrap().is_symlink(), "{name}");
        }
    }

    #[test]
    fn devices_and_pipes_are_written_to_in_place() {
        let scratch = Scratch::new("devices_and_pipes_are_written_to_in_place");
        write("/dev/null".as_ref(), Existing::Keep, "away").unwrap();
        symlink("/dev/null", scratch.path("null")).unwrap();
        write(&scratch.path("null"), Existing::Replace, "away").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        if fs::metadata("/dev/full").is_ok() {
            let error = write("/dev/full".as_ref(), Existing::Replace, "no room").unwrap_err();
            assert!(error.to_string().starts_with("/dev/full: "), "{error}");
            assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
        }

        let pipe = scratch.path("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut text = String::new();
                File::open(pipe).unwrap().read_to_string(&mut text).map(|_| text)
            }
        });
        write(&pipe, Existing::Keep, "through the pipe").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), "through the pipe");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    /// A link like `/dev/stdout` whose name leads to a pipe.
    #[cfg(target_os = "linux")]
    #[test]
    fn pipes_without_a_path_are_written_to() {
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        write(path.as_ref(), Existing::Keep, "through the pipe").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the pipe");
    }
}
