"""The paper's tables and figures, the remedies, other libraries' explainers: measured, with tables for the report."""
