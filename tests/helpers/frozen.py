"""The last module that the fork server imports: no collection of garbage in its children looks at what it has.

It would look at all of torch, and copy the pages that parent and children share.
"""

import gc

gc.freeze()
