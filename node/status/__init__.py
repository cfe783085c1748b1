"""The status endpoint of a node, on loopback unless `status_host` says otherwise, and its reader."""
