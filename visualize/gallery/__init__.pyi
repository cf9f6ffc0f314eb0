from .config import GalleryConfig as GalleryConfig
from .content import Classes as Classes
from .content import Discovery as Discovery
from .content import GalleryImage as GalleryImage
from .content import GalleryModel as GalleryModel
from .page import build_gallery as build_gallery
from .sheets import contact_sheet as contact_sheet
from .sheets import write_sheets as write_sheets
