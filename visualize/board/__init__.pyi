from .page import BOARD_FILES, write_board
from .ranking import Board, make_board
from .sources import BoardSource, read_sources

__all__ = ["BOARD_FILES", "Board", "BoardSource", "make_board", "read_sources", "write_board"]
