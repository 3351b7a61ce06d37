"""An event file that TensorBoard's own writer made: train/events.out.tfevents.

Made with tensorboard 2.21.0. With paths as arguments it prints what TensorBoard's reader finds in those files:
`python tensorboard_events.py RUN/events.out.tfevents.*`.
"""

import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

# Numbers that need one, two and ten bytes as varints, and names beyond ASCII.
SCALARS = [(1, {"loss/train": 1.5}), (300, {"loss/train": -0.25, "Lernrate η": 3e-4}), (-1, {}), (2**40, {"x" * 300: 0.0})]


def main():
    path = Path(__file__).parent / "train" / "events.out.tfevents"
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1.25, file_version="brain.Event:2").SerializeToString())
        start = SessionLog(status=SessionLog.START)
        writer.write(Event(wall_time=1.5, step=7, session_log=start).SerializeToString())
        for step, scalars in SCALARS:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.write(Event(wall_time=2.0, step=step, summary=Summary(value=values)).SerializeToString())


if __name__ == "__main__":
    for path in sys.argv[1:]:
        for event in EventFileLoader(path).Load():
            print(str(event).replace("\n", " "))
    if len(sys.argv) == 1:
        main()
