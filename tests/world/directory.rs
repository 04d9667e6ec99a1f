use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A directory that nobody else uses, gone with what is in it when this is dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // Making a directory fails if it exists, so that only one process gets each name.
        let path = (0..u32::MAX)
            .map(|number| place.join(format!("test-{number}")))
            .find(|path| match fs::create_dir(path) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                Err(error) => panic!("cannot make {}: {error}", path.display()),
            });
        Self(path.expect("there are enough numbers"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The address of an SQLite database in here, as `HOLDFAST_DATABASE_URL` takes it.
    pub fn sqlite_url(&self) -> String {
        format!("sqlite://{}", self.0.join("holdfast.db").display())
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}
