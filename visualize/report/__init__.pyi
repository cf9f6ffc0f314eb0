from .config import ReportConfig as ReportConfig
from .content import Preview as Preview
from .content import Report as Report
from .page import build_report as build_report
