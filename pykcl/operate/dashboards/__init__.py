"""Dashboards as JSON: which panels an operator wants, and how CloudWatch and Grafana are told of them. Pure.

May import `metrics`, whose catalogue of names they draw; knows no AWS.
"""
