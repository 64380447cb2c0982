//! The writer role on its executor.

use std::sync::Arc;

use crate::io::Blocking;
use crate::store::{Layout, Shared, Writer, WriterRings, WriterStart};

/// What the writer role needs, handed to the thread that will run it.
pub struct WriterParts {
    pub shared: Arc<Shared>,
    pub layout: Layout,
    pub blocking: Blocking,
    pub rings: WriterRings,
    pub start: WriterStart,
}

/// Runs the role until every shard has closed its ring. `ready` is called once it can append.
///
/// # Errors
/// The segment at the end of the log cannot be opened or made.
pub async fn run(parts: WriterParts, ready: impl FnOnce()) -> Result<(), String> {
    let WriterParts { shared, layout, blocking, rings, start } = parts;
    let path = layout.commitlog();
    let writer = Writer::open(shared, layout, blocking, rings, start)
        .await
        .map_err(|error| format!("{}: the commit log cannot be opened: {error}", path.display()))?;
    let side: Vec<_> = writer.side_tasks().into_iter().map(glommio::spawn_local).collect();
    ready();
    writer.run().await;
    // The rings to the shards close with the last task that holds the writer.
    for task in side {
        task.cancel().await;
    }
    Ok(())
}
