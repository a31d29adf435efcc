"""Migration from Java: MultiLangDaemon, programs of amazon_kclpy and .properties files, on pykcl.

May import every package but cli, local and testing; none of the core may import it.
"""
