"""Other engines on the same model, for comparison in the same run."""

from genwright.bench.measure import Peer

PEERS: tuple[Peer, ...] = ()
